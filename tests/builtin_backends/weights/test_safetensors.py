from __future__ import annotations

import io
import json
import logging
from collections.abc import Mapping
from contextlib import redirect_stderr
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from sglang_plug import Checkpoint, ConfigError, Model, Plugins, WeightError
from sglang_plug_backends.weights.safetensors import load_safetensors

MODEL: Model = SimpleNamespace()  # type: ignore[assignment]  # the loader ignores the model
A, B, C = torch.arange(6.0).reshape(2, 3), torch.ones(4, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.int64)


def load(folder: Path) -> dict[str, Tensor]:
    return dict(load_safetensors(Checkpoint(source="x", path=folder, config=None), MODEL))


def write_index(folder: Path, names: Mapping[str, object]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}), encoding="utf-8")


def write_shards(folder: Path) -> Path:
    save_file({"a": A, "b": B}, folder / "model-00001-of-00002.safetensors")
    save_file({"c": C}, folder / "model-00002-of-00002.safetensors")
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    write_index(folder, {"a": first, "b": first, "c": second})
    return folder


def test_shards_of_the_index(tmp_path: Path) -> None:
    save_file({"stray": A}, write_shards(tmp_path) / "other.safetensors")
    result = load(tmp_path)
    assert list(result) == ["a", "b", "c"]
    for name, tensor in (("a", A), ("b", B), ("c", C)):
        torch.testing.assert_close(result[name], tensor, rtol=0, atol=0)


def test_single_file_wins_over_others(tmp_path: Path) -> None:
    save_file({"a": A}, tmp_path / "model.safetensors")
    save_file({"b": B}, tmp_path / "consolidated.safetensors")
    assert list(load(tmp_path)) == ["a"]


def test_files_of_any_name(tmp_path: Path) -> None:
    save_file({"b": B}, tmp_path / "two.safetensors")
    save_file({"a": A}, tmp_path / "one.safetensors")
    save_file({"a": A}, tmp_path / "consolidated.safetensors")
    assert list(load(tmp_path)) == ["a", "b"]


def test_consolidated_file_alone_is_read(tmp_path: Path) -> None:
    save_file({"a": A}, tmp_path / "consolidated.safetensors")
    assert list(load(tmp_path)) == ["a"]


def replace_file(path: Path, **tensors: Tensor) -> None:
    """Replace a file; readers that have it open keep the old content."""
    path.unlink()
    save_file(tensors, path)


def test_tensors_come_one_at_a_time(tmp_path: Path) -> None:
    tensors = iter(load_safetensors(Checkpoint(source="x", path=write_shards(tmp_path), config=None), MODEL))
    first, second = (tmp_path / f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    replace_file(first, a=A + 1, b=B)  # not opened yet
    assert torch.equal(dict([next(tensors)])["a"], A + 1)
    replace_file(first, b=B + 1)  # opened already
    replace_file(second, c=C + 1)  # not opened yet
    rest = dict(tensors)
    assert torch.equal(rest["b"], B) and torch.equal(rest["c"], C + 1)


def test_missing_shard_is_named_before_anything_is_read(tmp_path: Path) -> None:
    (write_shards(tmp_path) / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(WeightError, match="model-00002-of-00002.safetensors is missing"):
        load_safetensors(Checkpoint(source="x", path=tmp_path, config=None), MODEL)


@pytest.mark.parametrize("damage", [lambda data: data[:-7], lambda data: b"\xff" * 40, lambda data: b""])
def test_damaged_shard_is_named(tmp_path: Path, damage: object) -> None:
    file = write_shards(tmp_path) / "model-00002-of-00002.safetensors"
    file.write_bytes(damage(file.read_bytes()))  # type: ignore[operator]
    with pytest.raises(WeightError, match="cannot read .*model-00002-of-00002.safetensors"):
        load(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {}}'])
def test_damaged_index_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text, encoding="utf-8")
    with pytest.raises(WeightError, match="model.safetensors.index.json"):
        load(tmp_path)


def test_index_cannot_point_elsewhere(tmp_path: Path) -> None:
    save_file({"a": A}, tmp_path / "secret.safetensors")
    (tmp_path / "model").mkdir()
    write_index(tmp_path / "model", {"a": "../secret.safetensors"})
    with pytest.raises(WeightError, match="not a file next to it"):
        load(tmp_path / "model")


def test_pickles_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(ConfigError, match="holds pytorch_model.bin but no .*only safetensors weights are read"):
        load(tmp_path)


def test_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no \*.safetensors$"):
        load(tmp_path)


def test_progress_is_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Terminal(io.StringIO):
        terminal = True

        def isatty(self) -> bool:
            return self.terminal

    write_shards(tmp_path)
    with redirect_stderr(Terminal()) as terminal:
        load(tmp_path)
    assert terminal.getvalue().split("\r")[1:] == [
        "Loading safetensors checkpoint shards:   0% Completed | 0/2",
        "Loading safetensors checkpoint shards:  50% Completed | 1/2",
        "Loading safetensors checkpoint shards: 100% Completed | 2/2\n",
    ]
    hidden = Terminal()
    hidden.terminal = False
    with redirect_stderr(hidden), caplog.at_level(logging.INFO):
        load(tmp_path)
    assert hidden.getvalue() == ""
    assert [text for text in caplog.messages if "shards" in text] == [
        "Loading safetensors checkpoint shards:  50% Completed | 1/2",
        "Loading safetensors checkpoint shards: 100% Completed | 2/2",
    ]


def test_it_is_the_default() -> None:
    from sglang_plug import Facts

    assert Plugins.discover().resolve("weights", "auto", Facts()).load() is load_safetensors
