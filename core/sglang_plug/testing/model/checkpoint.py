"""Conformance tests of checkpoint readers and of weight loaders."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from torch import Tensor

from sglang_plug.config import ConfigError
from sglang_plug.contracts.model.checkpoint import Checkpoint, CheckpointReader, CheckpointRequest, WeightLoader
from sglang_plug.contracts.model.model import Model
from sglang_plug.plugins.registry import Plugins
from sglang_plug.testing.refusals import refusal_of

DAMAGE = b"\x00\xff damaged {"
DESCRIPTORS = Path("/proc/self/fd")
SYSTEM_FOLDERS = ("/proc/", "/sys/")


def check_checkpoint_reader(reader: str | CheckpointReader, source: str | Path, *, overrides: bool = True) -> None:
    """Open a checkpoint, a copy with each of its files damaged, and sources where there is none.

    The result names an architecture and is the same each time, its path is the source or inside it, options replace
    values of the configuration, the checkpoint is not written to, and whatever is wrong is refused with
    ``ConfigError``.

    Args:
        reader: the reader, or the name an installed plugin declared it under.
        source: a small checkpoint of its format, a file or a folder.
        overrides: False for a format whose configuration ``--json-model-override-args`` cannot change.

    Raises:
        AssertionError: says what is wrong.
        PluginError: no plugin, or more than one, declares the name.
    """
    read: CheckpointReader = reader if callable(reader) else Plugins.discover().get("checkpoint", reader).factory()
    path = Path(source)
    before, opened_files = _state(path), _open_files()
    checkpoint, again = read(CheckpointRequest(source=str(path))), read(CheckpointRequest(source=str(path)))
    for opened in (checkpoint, again):
        assert isinstance(opened, Checkpoint), f"the reader must return a Checkpoint, not {type(opened).__name__}"
        assert opened.source == str(path), f"Checkpoint.source is {opened.source!r}, and {str(path)!r} was asked for"
        assert opened.path.exists(), f"Checkpoint.path is {opened.path}, which does not exist"
        inside = path.resolve() in (opened.path.resolve(), *opened.path.resolve().parents)
        assert inside, f"Checkpoint.path is {opened.path}, which is neither the source {path} nor inside it"
        assert opened.architecture, "Checkpoint.config must have architectures: they name the model class"
    assert _plain(checkpoint.config) == _plain(again.config), "the configuration differs each time"
    assert checkpoint.generation == again.generation, "the generation configuration differs each time"
    assert checkpoint.kv_scale is None or checkpoint.kv_scale("no.such.tensor") is None, (
        "kv_scale() must return None for a tensor that holds no scale"
    )
    if overrides:
        values = {"architectures": ["ChangedForCausalLM"]}
        changed = read(CheckpointRequest(source=str(path), overrides=values))
        assert changed.architecture == "ChangedForCausalLM", "overrides do not replace values of the configuration"
        assert values == {"architectures": ["ChangedForCausalLM"]}, "the reader changes the overrides that it is given"
        later = read(CheckpointRequest(source=str(path)))
        assert _plain(later.config) == _plain(again.config), (
            "overrides of one call are in the configuration of the next"
        )
    assert _state(path) == before, "the checkpoint was written to"
    gc.collect()
    assert (still_open := _open_files() - opened_files) <= set(), f"files stay open: {sorted(still_open)[0]}"
    with TemporaryDirectory() as folder:
        missing = Path(folder, "missing")
        _check_refused(read, CheckpointRequest(source=str(missing)), "a source that does not exist")
        (empty := Path(folder, "empty")).mkdir()
        _check_refused(read, CheckpointRequest(source=str(empty)), "an empty folder")
        for name in _files(path):
            copy = _copy(path, Path(folder, "copy"))
            _damaged(copy, name).write_bytes(DAMAGE)
            _check_refused(read, CheckpointRequest(source=str(copy)), f"{name}, damaged,", must=False)
            _remove(copy)


def check_weight_loader(
    loader: str | WeightLoader,
    checkpoint: Checkpoint,
    *,
    names: Iterable[str] = (),
) -> None:
    """Read the tensors of a checkpoint, break off in the middle, and read copies with damaged files.

    Names differ, tensors are on the host and keep their values while later ones are read, the checkpoint is not written
    to, no file stays open, and damaged weights are refused with ``WeightError`` or ``ConfigError``.

    Args:
        loader: the loader, or the name an installed plugin declared it under.
        checkpoint: a small checkpoint of its format, as its reader opened it.
        names: names that must be among the tensors.

    Raises:
        AssertionError: says what is wrong.
        PluginError: no plugin, or more than one, declares the name.
    """
    load: WeightLoader = loader if callable(loader) else Plugins.discover().get("weights", loader).factory()
    model = cast(Model, torch.nn.Module())  # a loader that reads files does not look at the model
    path, before, opened = checkpoint.path, _state(checkpoint.path), _open_files()
    tensors: dict[str, tuple[Tensor, Tensor]] = {}
    for name, tensor in load(checkpoint, model):
        assert isinstance(name, str) and isinstance(tensor, Tensor), f"pairs of name and tensor are expected: {name!r}"
        assert name not in tensors, f"{name} comes twice"
        assert tensor.device.type == "cpu", f"{name} is on {tensor.device}; tensors must be on the host"
        tensors[name] = tensor, tensor.clone()
    assert tensors, "there are no tensors"
    if missing := sorted(set(names) - tensors.keys()):
        raise AssertionError(f"{missing[0]} is missing; there are: {', '.join(sorted(tensors)[:5])}, …")
    for name, (tensor, copy) in tensors.items():
        assert _equal(tensor, copy), f"{name} changes while later tensors are read: give each its own memory"
    second = dict(load(checkpoint, model))
    assert second.keys() == tensors.keys(), "the names differ each time"
    assert all(_equal(second[name], copy) for name, (_, copy) in tensors.items()), "the values differ each time"
    _break_off(load, checkpoint, model)
    _check_two_ranks(load, checkpoint, model, {name: copy for name, (_, copy) in tensors.items()})
    del tensors, second
    assert (still_open := _open_files() - opened) <= set(), f"files stay open: {sorted(still_open)[0]}"
    assert _state(path) == before, "the checkpoint was written to"
    with TemporaryDirectory() as folder:
        for name in _weight_files(path):
            for damage, change in _DAMAGES.items():
                copy_path = _copy(path, Path(folder, "copy"))
                change(_damaged(copy_path, name))
                _check_damaged(load, _moved(checkpoint, copy_path), model, f"{name}, {damage},")
                _remove(copy_path)
        copy_path = _copy(path, Path(folder, "copy"))
        for name in _weight_files(path):
            _damaged(copy_path, name).unlink()
        _check_missing(load, _moved(checkpoint, copy_path), model)


def _check_two_ranks(load: WeightLoader, checkpoint: Checkpoint, model: Model, expected: Mapping[str, Tensor]) -> None:
    """Two ranks of one process load at the same time."""
    where = "two ranks that load at the same time"
    try:
        for expected_name, *pairs in zip(expected, load(checkpoint, model), load(checkpoint, model), strict=True):
            for name, tensor in pairs:
                assert name == expected_name and _equal(tensor, expected[name]), (
                    f"{where}: {name} comes instead of {expected_name}"
                )
    except Exception as error:
        if isinstance(error, AssertionError):
            raise
        raise AssertionError(f"{where}: raised {type(error).__name__}: {error}") from error


def _halve(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


_DAMAGES: dict[str, Callable[[Path], Any]] = {
    "cut in half": _halve,
    "without its last tenth": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size * 9 // 10]),
    "empty": lambda file: file.write_bytes(b""),
    "overwritten": lambda file: file.write_bytes(DAMAGE * 20),
}


def _check_refused(read: CheckpointReader, request: CheckpointRequest, case: str, *, must: bool = True) -> None:
    error = refusal_of(lambda: read(request), ConfigError, case)
    assert error is not None or not must, f"{case} must be refused with ConfigError"


def _check_damaged(load: WeightLoader, checkpoint: Checkpoint, model: Model, case: str) -> None:
    names: list[str] = []

    def read_all() -> None:
        names.extend(name for name, _ in load(checkpoint, model))

    error = refusal_of(read_all, ConfigError, case, name="WeightError")
    assert error is not None, f"{case} must be refused with WeightError; {len(names)} tensors were read"


def _check_missing(load: WeightLoader, checkpoint: Checkpoint, model: Model) -> None:
    try:
        count = sum(1 for _ in load(checkpoint, model))
    except (ConfigError, OSError):
        return
    raise AssertionError(f"a checkpoint without its files of weights must be refused; {count} tensors were read")


def _break_off(load: WeightLoader, checkpoint: Checkpoint, model: Model) -> None:
    """Stop after the first tensor, as a start does that fails in the meantime."""
    stream = iter(load(checkpoint, model))
    next(stream)
    close = getattr(stream, "close", None)
    if close is not None:
        close()


def _moved(checkpoint: Checkpoint, path: Path) -> Checkpoint:
    return Checkpoint(
        source=str(path),
        path=path,
        config=checkpoint.config,
        generation=checkpoint.generation,
        kv_scale=checkpoint.kv_scale,
    )


def _equal(first: Tensor, second: Tensor) -> bool:
    """Compare bytes, so that NaN equals NaN and every dtype can be compared."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return torch.equal(first.contiguous().flatten().view(torch.uint8), second.contiguous().flatten().view(torch.uint8))


def _plain(config: Any) -> Any:
    to_dict = getattr(config, "to_dict", None)
    return to_dict() if callable(to_dict) else vars(config)


def _files(path: Path) -> Sequence[str]:
    """Return the names of a checkpoint's files; of one file, its own."""
    return [path.name] if path.is_file() else sorted(entry.name for entry in path.iterdir() if entry.is_file())


def _weight_files(path: Path) -> Sequence[str]:
    """Return the files with weights: all but configurations and vocabularies."""
    texts = (".json", ".txt", ".jinja", ".md", ".model")
    return [name for name in _files(path) if not name.endswith(texts)]


def _copy(path: Path, target: Path) -> Path:
    if path.is_dir():
        shutil.copytree(path, target)
        return target
    target.mkdir()
    return Path(shutil.copy(path, target))


def _damaged(copy: Path, name: str) -> Path:
    return copy / name if copy.is_dir() else copy


def _remove(copy: Path) -> None:
    shutil.rmtree(copy if copy.is_dir() else copy.parent)


def _state(path: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of the last change of each file."""
    files = [path] if path.is_file() else [entry for entry in sorted(path.rglob("*")) if entry.is_file()]
    return {str(file): (file.stat().st_size, file.stat().st_mtime_ns) for file in files}


def _open_files() -> set[str]:
    """Return the regular files that this process has open; empty where the system does not say.

    Those of the system itself, below ``/proc`` and ``/sys``, are read by other threads and do not count.
    """
    names = set[str]()
    for entry in DESCRIPTORS.iterdir() if DESCRIPTORS.exists() else ():
        try:
            names.add(os.readlink(entry))
        except OSError:
            continue
    return {name for name in names if os.path.isfile(name) and not name.startswith(SYSTEM_FOLDERS)}
