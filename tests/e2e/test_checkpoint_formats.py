"""A model in a format that a plugin reads is served by its path alone: no flag names reader, loader or tokenizer."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import sglang_plug_models.demo

from .servers import Launcher, refused_start

DEMO = Path(sglang_plug_models.demo.__file__).parent / "sglang-plug-demo"
PLUGIN = """
from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sglang_plug import CheckpointSpec, TokenizerSpec, WeightsSpec, hookimpl

MAGIC = "linked model: "


def declared(spec, what):
    return spec(name="NAME", target=f"{__name__}:open_{what}", detects=f"{__name__}:is_{what}")


@hookimpl
def register_weight_loaders():
    yield declared(CheckpointSpec, "link")
    yield declared(WeightsSpec, "weights")


@hookimpl
def register_tokenizers():
    yield declared(TokenizerSpec, "tokenizer")


def is_link(request):
    return is_file(Path(request.source))


def is_weights(checkpoint):
    return is_file(checkpoint.path)


def is_tokenizer(source):
    return is_file(source.path)


def is_file(path):
    return path.is_file() and path.read_bytes()[:len(MAGIC)].decode("latin-1") == MAGIC


def folder_of(path):
    return Path(Path(path).read_text().removeprefix(MAGIC).strip())


def open_link(request):
    from sglang_plug_backends.huggingface.checkpoint import open_checkpoint

    folder = folder_of(request.source)
    opened = open_checkpoint(replace(request, source=str(folder)))
    return replace(opened, source=request.source, path=Path(request.source))


def open_weights(checkpoint, model):
    from sglang_plug_backends.weights.safetensors import load_safetensors

    return load_safetensors(replace(checkpoint, path=folder_of(checkpoint.path)), model)


def open_tokenizer(source):
    from sglang_plug_backends.huggingface.tokenizer import load_tokenizer

    return load_tokenizer(replace(source, path=folder_of(source.path)))
"""


def plugin(folder: Path, name: str = "linked") -> Path:
    file = folder / f"{name}.py"
    file.write_text(PLUGIN.replace("NAME", name))
    return file


def test_a_file_chooses_its_reader_loader_and_tokenizer(launch: Launcher, tmp_path: Path) -> None:
    model = tmp_path / "model.link"
    model.write_text(f"linked model: {DEMO}\n")
    server = launch.in_thread(str(model), "--plugin", str(plugin(tmp_path)))
    components = server.info()["components"]
    assert {kind: components[kind]["name"] for kind in ("checkpoint", "weights")} == {
        "checkpoint": "linked",
        "weights": "linked",
    }
    assert components["checkpoint"]["reason"] == "recognises the checkpoint"
    body = {"text": "Once upon a time", "sampling_params": {"regex": "[a-z]{5}", "max_new_tokens": 8}}
    assert len(server.generate(body)["text"]) == 5  # the engine's tokenizer is the plugin's, too


def test_two_readers_of_one_file_are_both_named(tmp_path: Path) -> None:
    model = tmp_path / "model.link"
    model.write_text(f"linked model: {DEMO}\n")
    files = [text for name in ("one", "two") for text in ("--plugin", str(plugin(tmp_path, name)))]
    log = refused_start("--deployment", "thread", str(model), *files)
    assert f"checkpoint 'one' from {tmp_path}/one.py" in log and f"checkpoint 'two' from {tmp_path}/two.py" in log
    assert f"recognise the model '{model}'; name one with --checkpoint-format" in log


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda path: path.write_text("anything"), "checkpoint", "it is a file"),
        (
            lambda path: shutil.copytree(DEMO, path, ignore=shutil.ignore_patterns("config.json")),
            "checkpoint",
            "holds no config.json",
        ),
        (
            lambda path: shutil.copytree(DEMO, path, ignore=shutil.ignore_patterns("*.safetensors")),
            "weights",
            "holds no *.safetensors",
        ),
    ],
    ids=["file", "folder", "weights"],
)
def test_an_unknown_source_tells_what_was_tried(
    make: Callable[[Path], object], kind: str, message: str, tmp_path: Path
) -> None:
    model = tmp_path / "model.bin"
    make(model)
    file = plugin(tmp_path)
    log = refused_start("--deployment", "thread", str(model), "--plugin", str(file))
    builtin = {"checkpoint": "huggingface", "weights": "safetensors"}[kind]
    assert message in log and "dummy" not in log
    (tried,) = (line for line in log.splitlines() if f"(no {kind} component recognises it; tried: " in line)
    assert f"{builtin} (sglang-plug " in tried and f"linked ({file} " in tried
