"""``modules.json`` of sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import ConfigError, Pooling
from sglang_plug_backends.huggingface.pooling import read_pooling

TRANSFORMER, POOLING, NORMALIZE = (
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
)


def write(folder: Path, modules: Any, pooling: Any = None) -> None:
    (folder / "modules.json").write_text(json.dumps(modules))
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def chosen(*names: str) -> dict[str, Any]:
    known = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"]
    flags = {f"pooling_mode_{name}": name in names for name in known}
    return {"word_embedding_dimension": 384, **flags, "include_prompt": True}


@pytest.mark.parametrize(("name", "mode"), [("cls_token", "cls"), ("mean_tokens", "mean"), ("lasttoken", "last")])
@pytest.mark.parametrize("normalize", [True, False])
def test_flags(name: str, mode: Any, normalize: bool, tmp_path: Path) -> None:
    write(tmp_path, [TRANSFORMER, POOLING, *[NORMALIZE] * normalize], chosen(name))
    assert read_pooling(tmp_path) == Pooling(mode=mode, normalize=normalize)


@pytest.mark.parametrize(("name", "mode"), [("cls", "cls"), ("mean", "mean"), ("lasttoken", "last")])
def test_named_mode(name: str, mode: Any, tmp_path: Path) -> None:
    write(tmp_path, [TRANSFORMER, POOLING], {"embedding_dimension": 384, "pooling_mode": name})
    assert read_pooling(tmp_path) == Pooling(mode=mode, normalize=False)


def test_other_checkpoints_say_nothing(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) is None
    write(tmp_path, [TRANSFORMER])
    assert read_pooling(tmp_path) is None


@pytest.mark.parametrize("names", [(), ("max_tokens",), ("cls_token", "mean_tokens")])
def test_other_modes_are_refused(names: tuple[str, ...], tmp_path: Path) -> None:
    write(tmp_path, [TRANSFORMER, POOLING], chosen(*names))
    with pytest.raises(ConfigError, match=names[0] if names else "no pooling"):
        read_pooling(tmp_path)


def test_other_modules_are_refused(tmp_path: Path) -> None:
    dense = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    write(tmp_path, [TRANSFORMER, POOLING, dense], chosen("mean_tokens"))
    with pytest.raises(ConfigError, match="'Dense', which is not supported"):
        read_pooling(tmp_path)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    write(tmp_path, [TRANSFORMER, POOLING])
    with pytest.raises(ConfigError, match="1_Pooling/config.json cannot be read"):
        read_pooling(tmp_path)
    (tmp_path / "modules.json").write_text("{")
    with pytest.raises(ConfigError, match="modules.json cannot be read"):
        read_pooling(tmp_path)
