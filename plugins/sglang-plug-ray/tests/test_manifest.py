"""The files that ``sglang-plug ray`` prints. Needs no ray."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from sglang_plug_ray.arguments import Arguments
from sglang_plug_ray.command import command

from sglang_plug import ConfigError, Plugins

CONTAINER = ("spec", "containers", 0)


def printed(capsys: pytest.CaptureFixture[str], *flags: str) -> Any:
    parser = argparse.ArgumentParser()
    plugins = Plugins.discover()
    command.arguments(parser, plugins)
    assert command.run(parser.parse_args(flags), plugins) == 0
    return yaml.safe_load(capsys.readouterr().out)


def test_the_file_of_an_application_has_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    document = printed(
        capsys,
        "config",
        "/models/a",
        "--engines",
        "3",
        "--option",
        "max_total_tokens=4096",
        "--option",
        "dtype=float32",
    )
    (application,) = document["applications"]
    assert application["import_path"] == "sglang_plug_ray.application:application"
    arguments = Arguments.model_validate(application["args"])
    assert (arguments.model_path, arguments.engines) == ("/models/a", 3)
    assert arguments.options == {"max_total_tokens": 4096, "dtype": "float32"}


def test_a_manifest_has_a_worker_for_each_engine_and_none_on_the_head(capsys: pytest.CaptureFixture[str]) -> None:
    document = printed(
        capsys, "manifest", "--engines", "2", "--engine-gpus", "1", "--max-engines", "5", "--image", "i:1"
    )
    assert (document["apiVersion"], document["kind"]) == ("ray.io/v1", "RayService")
    cluster = document["spec"]["rayClusterConfig"]
    (workers,) = cluster["workerGroupSpecs"]
    assert (workers["replicas"], workers["minReplicas"], workers["maxReplicas"]) == (2, 2, 5)
    assert cluster["enableInTreeAutoscaling"] is True
    (container,) = workers["template"]["spec"]["containers"]
    assert container["image"] == "i:1" and container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert cluster["headGroupSpec"]["rayStartParams"]["num-gpus"] == "0"
    served = yaml.safe_load(document["spec"]["serveConfigV2"])
    arguments = Arguments.model_validate(served["applications"][0]["args"])
    assert arguments.autoscaling is not None and arguments.autoscaling.max_engines == 5


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--option", "max_total_tokenz=1"], "has no option 'max_total_tokenz'; did you mean 'max_total_tokens'"),
        (["--option", "max_total_tokens=many"], "max-total-tokens"),
        (["--option", "flag"], "NAME=VALUE"),
        (["--engines", "0"], "engines: .*greater than or equal to 1"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_deployed(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=message):
        printed(capsys, "config", *flags)


def test_the_version_changes_with_what_is_served_and_not_with_the_number_of_engines() -> None:
    first = Arguments(model_path="/a", engines=1)
    assert first.version == Arguments(model_path="/a", engines=4, ingresses=2).version
    assert first.version != Arguments(model_path="/b").version
    assert first.version != Arguments(model_path="/a", options={"dtype": "float32"}).version


def test_the_text_of_serve_run_is_read_as_json() -> None:
    arguments = Arguments.model_validate({"options": '{"max_total_tokens": 64}', "engines": "2"})
    assert (arguments.options, arguments.engines) == ({"max_total_tokens": 64}, 2)
    with pytest.raises(ValidationError, match="extra"):
        Arguments.model_validate({"engine": 2})
