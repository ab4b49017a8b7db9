"""``sglang-plug ray``: the files with which Ray Serve and KubeRay run the server."""

from __future__ import annotations

import argparse
import json
from typing import Any

from sglang_plug import ConfigError, Plugins


class RayCommand:
    """Prints a manifest."""

    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        """Add the flags."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        for action, text in (
            ("manifest", "print a RayService for Kubernetes with KubeRay"),
            ("config", "print the file for 'serve deploy'"),
        ):
            add_flags(actions.add_parser(action, help=text, description=text))

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        """Print the file. Raises ``ConfigError`` for arguments that are wrong."""
        from pydantic import ValidationError

        from .arguments import Arguments
        from .manifest import application_config, as_yaml, ray_service

        try:
            arguments = Arguments.model_validate(_values(options))
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()
            )
            raise ConfigError(problems) from error
        arguments.load()  # names an option that is wrong
        if options.action == "config":
            print(as_yaml(application_config(arguments, name=options.name)), end="")
        else:
            document = ray_service(
                arguments,
                name=options.name,
                image=options.image,
                ray_version=options.ray_version,
                memory=options.memory,
            )
            print(as_yaml(document), end="")
        return 0


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of both actions."""
    parser.add_argument("model", nargs="?", default="auto", metavar="MODEL", help="a folder or a hub id")
    parser.add_argument("--name", default="llm", help="name of the application and of the RayService")
    parser.add_argument("--engines", type=int, default=1, metavar="N", help="number of engines")
    parser.add_argument(
        "--max-engines",
        type=int,
        metavar="N",
        help="scale between --engines and N engines, by queued and running tokens",
    )
    parser.add_argument("--ingresses", type=int, default=1, metavar="N", help="number of API processes")
    parser.add_argument("--engine-cpus", type=float, default=1.0, metavar="NUMBER", help="CPUs of each engine")
    parser.add_argument("--engine-gpus", type=float, default=0.0, metavar="NUMBER", help="GPUs of each engine")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="option of sglang-plug serve, with underscores: max_total_tokens=65536; a value may be JSON",
    )
    parser.add_argument("--image", default="sglang-plug-ray:0.1.0", help="image with ray and sglang-plug-ray")
    parser.add_argument("--ray-version", default="2.60.0", metavar="VERSION", help="version of ray in the image")
    parser.add_argument("--memory", default="16Gi", metavar="SIZE", help="memory of each engine's pod")


def _values(options: argparse.Namespace) -> dict[str, Any]:
    values: dict[str, Any] = {
        "model_path": options.model,
        "options": dict(_option(text) for text in options.option),
        "engines": options.engines,
        "ingresses": options.ingresses,
        "engine_cpus": options.engine_cpus,
        "engine_gpus": options.engine_gpus,
    }
    if options.max_engines is not None:
        values["autoscaling"] = {"min_engines": options.engines, "max_engines": options.max_engines}
    return values


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--option {text!r}: write it as NAME=VALUE")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


command = RayCommand()
