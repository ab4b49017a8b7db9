from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from sglang_plug import Checkpoint, CheckpointNotFoundError, CheckpointRequest, ConfigError, PluginError, WeightError
from sglang_plug.testing import check_checkpoint_reader, check_weight_loader
from tests.e2e.document_models import demo

CONFIG = {"architectures": ["TinyForCausalLM"], "hidden_size": 4}
HEADER = struct.Struct("<4sI")
MAGIC = b"TINY"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint in a format of the tests: a configuration, and three float32 vectors of four numbers."""
    path = tmp_path / "tiny"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    numbers = torch.arange(12, dtype=torch.float32)
    (path / "weights.tiny").write_bytes(HEADER.pack(MAGIC, 3) + numbers.numpy().tobytes())
    return path


def read(request: CheckpointRequest) -> Checkpoint:
    path = Path(request.source)
    if not path.is_dir():
        raise CheckpointNotFoundError(f"there is no folder {path}")
    try:
        data = json.loads((path / "config.json").read_bytes().decode())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return Checkpoint(source=request.source, path=path, config=SimpleNamespace(**{**data, **request.overrides}))


def load(checkpoint: Checkpoint, model: Any) -> Iterator[tuple[str, Tensor]]:
    with open(checkpoint.path / "weights.tiny", "rb") as file:
        header = file.read(HEADER.size)
        if len(header) < HEADER.size or HEADER.unpack(header)[0] != MAGIC:
            raise WeightError("weights.tiny is damaged")
        for number in range(HEADER.unpack(header)[1]):
            content = file.read(16)
            if len(content) < 16:
                raise WeightError("weights.tiny is cut off")
            yield f"vector.{number}", torch.frombuffer(bytearray(content), dtype=torch.float32)


def opened(folder: Path) -> Checkpoint:
    return read(CheckpointRequest(source=str(folder)))


def test_a_correct_format_passes(folder: Path) -> None:
    check_checkpoint_reader(read, folder)
    check_weight_loader(load, opened(folder), names=["vector.0", "vector.2"])


def test_the_built_in_format_passes() -> None:
    check_checkpoint_reader("huggingface", demo())
    from sglang_plug_backends.huggingface.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(CheckpointRequest(source=str(demo())))
    check_weight_loader("safetensors", checkpoint, names=["model.embed_tokens.weight"])


def nameless(request: CheckpointRequest) -> Checkpoint:
    checkpoint = read(request)
    del checkpoint.config.architectures
    return checkpoint


def ignores_overrides(request: CheckpointRequest) -> Checkpoint:
    return read(CheckpointRequest(source=request.source))


def raises_key_errors(request: CheckpointRequest) -> Checkpoint:
    path = Path(request.source)
    return Checkpoint(
        source=request.source,
        path=path,
        config=SimpleNamespace(**{**json.loads((path / "config.json").read_bytes()), **request.overrides}),
    )


def accepts_anything(request: CheckpointRequest) -> Checkpoint:
    try:
        return read(request)
    except ConfigError:
        return Checkpoint(source=request.source, path=Path(request.source), config=SimpleNamespace(**CONFIG))


def writes(request: CheckpointRequest) -> Checkpoint:
    checkpoint = read(request)
    (checkpoint.path / "cache.json").write_text("{}")
    return checkpoint


def path_of_parent(request: CheckpointRequest) -> Checkpoint:
    checkpoint = read(request)
    return Checkpoint(source=checkpoint.source, path=checkpoint.path.parent, config=checkpoint.config)


def resolved_source(request: CheckpointRequest) -> Checkpoint:
    checkpoint = read(request)
    return Checkpoint(source=checkpoint.path.name, path=checkpoint.path, config=checkpoint.config)


def different_each_time(request: CheckpointRequest) -> Checkpoint:
    checkpoint = read(request)
    checkpoint.config.loaded = object()
    return checkpoint


def keeps_overrides() -> Any:
    kept: dict[str, Any] = {}

    def reader(request: CheckpointRequest) -> Checkpoint:
        kept.update(request.overrides)
        return read(CheckpointRequest(source=request.source, overrides=kept))

    return reader


def changes_overrides(request: CheckpointRequest) -> Checkpoint:
    checkpoint = read(request)
    if isinstance(request.overrides, dict):
        request.overrides["hidden_size"] = 8
    return checkpoint


def leaves_the_configuration_open(request: CheckpointRequest) -> Checkpoint:
    checkpoint = read(request)
    LEFT_OPEN.append(open(checkpoint.path / "config.json", "rb"))
    return checkpoint


@pytest.mark.planted_bug("checkpoint")
@pytest.mark.parametrize(
    ("reader", "message"),
    [
        (nameless, "must have architectures"),
        (ignores_overrides, "overrides do not replace"),
        (raises_key_errors, "a source that does not exist must be refused with ConfigError; it raised FileNotFoundErr"),
        (accepts_anything, "a source that does not exist must be refused"),
        (writes, "the checkpoint was written to"),
        (resolved_source, "Checkpoint.source is 'tiny'"),
        (path_of_parent, "Checkpoint.path is .*, which is neither the source .*tiny nor inside it"),
        (different_each_time, "the configuration differs each time"),
        (lambda request: vars(read(request).config), "must return a Checkpoint, not dict"),
        (keeps_overrides(), "overrides of one call are in the configuration of the next"),
        (changes_overrides, "changes the overrides"),
        (leaves_the_configuration_open, "files stay open: .*config.json"),
    ],
)
def test_broken_readers_fail(reader: Any, message: str, folder: Path) -> None:
    with pytest.raises(AssertionError, match=message):
        check_checkpoint_reader(reader, folder)


def reuses_memory(checkpoint: Checkpoint, model: Any) -> Iterable[tuple[str, Tensor]]:
    buffer = torch.empty(4)
    for name, tensor in load(checkpoint, model):
        yield name, buffer.copy_(tensor)


def repeats_names(checkpoint: Checkpoint, model: Any) -> Iterable[tuple[str, Tensor]]:
    return (("vector", tensor) for _, tensor in load(checkpoint, model))


def asks_the_model(checkpoint: Checkpoint, model: Any) -> Iterable[tuple[str, Tensor]]:
    return ((name, tensor) for name, tensor in load(checkpoint, model) if name in model.wanted)


def trusts_lengths(checkpoint: Checkpoint, model: Any) -> Iterable[tuple[str, Tensor]]:
    content = (checkpoint.path / "weights.tiny").read_bytes()
    _, count = HEADER.unpack(content[: HEADER.size])
    for number in range(min(count, 3)):
        start = HEADER.size + 16 * number
        yield f"vector.{number}", torch.frombuffer(bytearray(content[start : start + 16]), dtype=torch.float32)


def reads_what_is_left(checkpoint: Checkpoint, model: Any) -> Iterable[tuple[str, Tensor]]:
    try:
        yield from load(checkpoint, model)
    except WeightError:
        yield "vector.0", torch.zeros(4)


def random_values(checkpoint: Checkpoint, model: Any) -> Iterable[tuple[str, Tensor]]:
    return ((name, torch.rand(4)) for name, _ in load(checkpoint, model))


LEFT_OPEN: list[Any] = []


def leaves_files_open(checkpoint: Checkpoint, model: Any) -> Iterable[tuple[str, Tensor]]:
    LEFT_OPEN.append(open(checkpoint.path / "weights.tiny", "rb"))
    return load(checkpoint, model)


def takes_missing_files(checkpoint: Checkpoint, model: Any) -> Iterable[tuple[str, Tensor]]:
    return load(checkpoint, model) if (checkpoint.path / "weights.tiny").exists() else ()


def needs_no_end(checkpoint: Checkpoint, model: Any) -> Iterable[tuple[str, Tensor]]:
    read_so_far = 0
    try:
        for pair in load(checkpoint, model):
            read_so_far += 1
            yield pair
    except WeightError:
        if read_so_far < 2:
            raise


def shares_its_list() -> Any:
    pending: list[tuple[str, Tensor]] = []

    def loader(checkpoint: Checkpoint, model: Any) -> Iterable[tuple[str, Tensor]]:
        pending[:] = load(checkpoint, model)
        while pending:
            yield pending.pop(0)

    return loader


@pytest.mark.planted_bug("weights")
@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (reuses_memory, "vector.0 changes while later tensors are read"),
        (repeats_names, "vector comes twice"),
        (trusts_lengths, "must be refused with WeightError; it raised"),
        (reads_what_is_left, "must be refused with WeightError; . tensors were read"),
        (random_values, "the values differ each time"),
        (leaves_files_open, "files stay open: .*weights.tiny"),
        (lambda checkpoint, model: [], "there are no tensors"),
        (takes_missing_files, "without its files of weights must be refused; 0 tensors"),
        (needs_no_end, "without its last tenth, must be refused with WeightError; 2 tensors"),
        (shares_its_list(), "two ranks that load at the same time"),
    ],
)
def test_broken_loaders_fail(loader: Any, message: str, folder: Path) -> None:
    try:
        with pytest.raises(AssertionError, match=message):
            check_weight_loader(loader, opened(folder))
    finally:
        while LEFT_OPEN:
            LEFT_OPEN.pop().close()


@pytest.mark.planted_bug("weights")
def test_a_loader_that_needs_the_model_is_noticed(folder: Path) -> None:
    with pytest.raises(AttributeError, match="wanted"):
        check_weight_loader(asks_the_model, opened(folder))


def test_missing_names_are_told(folder: Path) -> None:
    with pytest.raises(AssertionError, match="vector.9 is missing; there are: vector.0, vector.1, vector.2"):
        check_weight_loader(load, opened(folder), names=["vector.9"])
    with pytest.raises(PluginError, match="no weights named 'nobody'"):
        check_weight_loader("nobody", opened(folder))
