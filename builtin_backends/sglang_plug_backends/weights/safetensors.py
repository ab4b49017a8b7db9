"""Stream a checkpoint's safetensors files."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from sglang_plug import Checkpoint, ConfigError, Model, WeightError
from sglang_plug_backends.checkpoint_files import MAX_INDEX, check_file, read_file
from sglang_plug_backends.progress_line import ProgressLine

logger = logging.getLogger(__name__)

INDEX = "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.gguf")


def load_safetensors(checkpoint: Checkpoint, model: Model) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of the checkpoint with its name, on the host, in its stored dtype.

    One tensor is in memory at a time. Raises ``ConfigError`` if the folder holds no safetensors file, and
    ``WeightError`` naming the file if one is missing or damaged.
    """
    return _stream(find_shards(checkpoint.path))


def detect_safetensors(checkpoint: Checkpoint) -> bool:
    """Report whether the checkpoint's folder holds safetensors files, or an index of such files."""
    return (checkpoint.path / INDEX).is_file() or any(checkpoint.path.glob("*.safetensors"))


def find_shards(folder: Path) -> list[Path]:
    """Return the files to read: those of the index, else ``model.safetensors``, else every ``*.safetensors``."""
    index = folder / INDEX
    if index.is_file():
        return _indexed(index)
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    result = sorted(folder.glob("*.safetensors"))
    if result:
        # Mistral's repositories carry the same weights twice, the second time under their own names.
        return [path for path in result if not path.name.startswith("consolidated")] or result
    other = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if other:
        raise ConfigError(
            f"{folder} holds {other[0]} but no *.safetensors: only safetensors weights are read; "
            "convert the checkpoint (save_pretrained writes safetensors)"
        )
    raise ConfigError(f"{folder} holds no *.safetensors")


def _indexed(index: Path) -> list[Path]:
    try:
        names = dict.fromkeys(
            str(name) for name in json.loads(read_file(index, MAX_INDEX).decode())["weight_map"].values()
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightError(f"{index} is not a safetensors index: {type(error).__name__}: {error}") from error
    shards = []
    for name in names:
        if Path(name).name != name:
            raise WeightError(f"{index} names {name!r}, which is not a file next to it")
        if not (index.parent / name).is_file():
            raise WeightError(f"{index.parent / name} is missing, but {index.name} lists it")
        shards.append(index.parent / name)
    if not shards:
        raise WeightError(f"{index} lists no file")
    return shards


def _stream(shards: Sequence[Path]) -> Iterator[tuple[str, Tensor]]:
    total = len(shards)
    with ProgressLine(total, logger) as progress:
        progress.show(0, _progress(0, total))
        for done, shard in enumerate(shards, 1):
            check_file(shard, float("inf"))
            try:
                with safe_open(shard, framework="pt", device="cpu") as file:
                    for name in file.keys():
                        yield name, file.get_tensor(name)
            except (SafetensorError, OSError) as error:
                raise WeightError(f"cannot read {shard}: {error}; is the file complete?") from error
            progress.show(done, _progress(done, total))


def _progress(done: int, total: int) -> str:
    return f"Loading safetensors checkpoint shards: {100 * done // total:3d}% Completed | {done}/{total}"
