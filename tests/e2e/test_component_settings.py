"""Every kind of component receives its settings, in whichever process it runs, and wrong ones end the start at once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .servers import Launcher, Server

KINDS = {
    "--checkpoint-format": "checkpoint",
    "--load-format": "weights",
    "--tokenizer-mode": "tokenizer",
    "--prefix-cache": "prefix-cache",
    "--tool-call-parser": "tool-parser",
    "--reasoning-parser": "reasoning-parser",
    "--model-impl": "model",
}
"""The flag that selects a component of each kind."""
PLUGIN = '''
from __future__ import annotations

import sys

import msgspec
from sglang_plug import (
    CheckpointSpec, CommandSpec, ModelSpec, PrefixCacheSpec, ReasoningParserSpec, RouteSpec, TokenizerSpec,
    ToolParserSpec, WeightsSpec, hookimpl,
)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    level: int = 1
    label: str | None = None


def declared(spec, kind, **more):
    target = f"{__name__}:{kind.replace('-', '_')}"
    return spec(name=f"my-{kind}", target=target, settings=f"{__name__}:Settings", **more)


def note(kind, settings):
    print(f"settings of {kind}: {settings}", file=sys.stderr, flush=True)


@hookimpl
def register_weight_loaders():
    yield declared(CheckpointSpec, "checkpoint")
    yield declared(WeightsSpec, "weights")


@hookimpl
def register_tokenizers():
    yield declared(TokenizerSpec, "tokenizer")


@hookimpl
def register_cache_policies():
    yield declared(PrefixCacheSpec, "prefix-cache")


@hookimpl
def register_output_parsers():
    yield declared(ToolParserSpec, "tool-parser")
    yield declared(ReasoningParserSpec, "reasoning-parser")


@hookimpl
def register_models():
    yield declared(ModelSpec, "model", generic=True)


@hookimpl
def register_routes():
    yield declared(RouteSpec, "route")


@hookimpl
def register_commands():
    yield declared(CommandSpec, "command", summary="prints its settings")


def checkpoint(request, settings):
    from sglang_plug_backends.huggingface.checkpoint import open_checkpoint

    note("checkpoint", settings)
    return open_checkpoint(request)


def weights(checkpoint, model, settings):
    from sglang_plug_backends.weights.safetensors import load_safetensors

    note("weights", settings)
    yield from load_safetensors(checkpoint, model)


def tokenizer(source, settings):
    from sglang_plug_backends.huggingface.tokenizer import load_tokenizer

    note("tokenizer", settings)
    return load_tokenizer(source)


def route(engine, settings):
    from fastapi import APIRouter

    router = APIRouter()
    router.add_api_route("/settings", lambda: {"level": settings.level, "label": settings.label})
    return router


class command:
    def __init__(self, settings):
        self.settings = settings

    def arguments(self, parser, plugins):
        pass

    def run(self, options, plugins):
        print(self.settings.level)
        return 0


def __getattr__(name):
    """The classes below import torch, and this file is imported by every process."""
    from sglang_plug import OutputParser, Text
    from sglang_plug_backends.prefix_cache.radix import RadixCache
    from sglang_plug_models.MODEL_MODULE import MODEL_CLASS as Base

    class Cache(RadixCache):
        def __init__(self, page_size, policy, clock, settings):
            super().__init__(page_size, policy, clock)
            note("prefix-cache", settings)

    class Parser(OutputParser):
        def __init__(self):
            note("parser", self.settings)

        def feed(self, text):
            return [Text(f"{self.settings.level}: {text}")]

        def finish(self):
            return []

    class Model(Base):
        def __init__(self, config, env):
            super().__init__(config, env)
            note("model", self.settings)

    known = {"prefix_cache": Cache, "tool_parser": Parser, "reasoning_parser": Parser, "model": Model}
    if name not in known:
        raise AttributeError(name)
    return known[name]
'''


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a plugin with a component of each kind, and return its file."""
    file = tmp_path_factory.mktemp("plugin") / "settled.py"
    file.write_text(PLUGIN.replace("MODEL_MODULE", "llama.model").replace("MODEL_CLASS", "Llama"))
    return file


@pytest.fixture(scope="module")
def settled(module_launcher: Launcher, plugin: Path) -> Server:
    """A server whose components of these kinds all come from the plugin."""
    flags = [text for flag, kind in KINDS.items() for text in (flag, f"my-{kind}")]
    levels = [
        text
        for level, kind in enumerate([*KINDS.values(), "route"], 2)
        for text in ("--set", f"my-{kind}.level={level}")
    ]
    return module_launcher("--plugin", str(plugin), *flags, *levels, "--set", "my-route.label=x")


def test_every_component_receives_its_own_settings(settled: Server) -> None:
    levels = {kind: level for level, kind in enumerate(KINDS.values(), 2)}
    printed = dict(re.findall(r"settings of ([\w-]+): .*level=(\d+)", settled.log))
    for kind in ("checkpoint", "weights", "tokenizer", "prefix-cache", "model"):
        assert printed[kind] == str(levels[kind]), kind
    assert settled.get("/settings").json() == {"level": 9, "label": "x"}
    answer = settled.post("/separate_reasoning", {"text": "hello", "reasoning_parser": "my-reasoning-parser"})
    assert answer.json()["text"] == f"{levels['reasoning-parser']}: hello"


def test_settings_are_listed(plugin: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from sglang_plug.__main__ import main

    assert main(["plugins", "show", "my-route", "--plugin", str(plugin)]) == 0
    output = capfd.readouterr().out
    assert (
        "--set my-route.level=int (default 1)" in output and "--set my-route.label=str | None (default None)" in output
    )
    assert main(["my-command", "--plugin", str(plugin), "--set", "my-command.level=7"]) == 0
    assert capfd.readouterr().out == "7\n"


@pytest.mark.parametrize("kind", [*KINDS.values(), "route"])
def test_wrong_settings_are_told_before_anything_is_loaded(
    kind: str, plugin: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from sglang_plug.__main__ import main

    wrong = ["--set", f"my-{kind}.level=high"]
    assert main(["serve", "--plugin", str(plugin), "--port", "0", *wrong]) == 2
    message = f"settings of 'my-{kind}': level must be an integer, not text (--set my-{kind}.level=high)"
    assert message in capfd.readouterr().err
