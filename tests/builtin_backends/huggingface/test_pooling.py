"""The configuration of pooling in sentence-transformers' ``modules.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from sglang_plug import ConfigError, Pooling
from sglang_plug_backends.huggingface.pooling import read_pooling

TRANSFORMER, POOLING, NORMALIZE, DENSE = (
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
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


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("cls_token", "cls"),
        ("mean_tokens", "mean"),
        ("lasttoken", "last"),
        ("max_tokens", "max"),
        ("mean_sqrt_len_tokens", "mean_sqrt_len"),
        ("weightedmean_tokens", "weighted_mean"),
    ],
)
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


@pytest.mark.parametrize("names", [(), ("cls_token", "mean_tokens")])
def test_other_modes_are_refused(names: tuple[str, ...], tmp_path: Path) -> None:
    write(tmp_path, [TRANSFORMER, POOLING], chosen(*names))
    with pytest.raises(ConfigError, match=names[0] if names else "no pooling"):
        read_pooling(tmp_path)


def write_dense(folder: Path, **changes: Any) -> Tensor:
    """Write a dense layer with random weights next to the pooling's configuration."""
    write(folder, [TRANSFORMER, POOLING, DENSE, {**NORMALIZE, "path": "3_Normalize"}], chosen("mean_tokens"))
    (folder / "2_Dense").mkdir()
    values = {"in_features": 4, "out_features": 3, "bias": True, "activation_function": "torch.nn.GELU", **changes}
    (folder / "2_Dense" / "config.json").write_text(json.dumps(values))
    weight = torch.randn(3, 4)
    save_file({"linear.weight": weight.half(), "linear.bias": torch.ones(3)}, folder / "2_Dense" / "model.safetensors")
    return weight


def test_matrices_behind_the_pooling(tmp_path: Path) -> None:
    weight = write_dense(tmp_path)
    result = read_pooling(tmp_path)
    assert result is not None and result.normalize
    (projection,) = result.projections
    assert projection.activation is torch.nn.functional.gelu
    assert projection.weight.dtype == torch.float32 and projection.bias is not None
    torch.testing.assert_close(projection.weight, weight, atol=1e-2, rtol=0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"activation_function": "torch.nn.modules.activation.PReLU"}, "asks for the activation PReLU"),
        ({"module_input_name": "token_embeddings"}, "projects token_embeddings"),
        ({"use_residual": True}, "use_residual, which is not supported"),
        ({"in_features": 5}, r"linear.weight of shape \(3, 4\)"),
    ],
)
def test_other_matrices_are_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    write_dense(tmp_path, **change)
    with pytest.raises(ConfigError, match=words):
        read_pooling(tmp_path)


def test_a_matrix_without_its_numbers_is_named(tmp_path: Path) -> None:
    write_dense(tmp_path)
    (tmp_path / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="2_Dense/model.safetensors cannot be read"):
        read_pooling(tmp_path)


@pytest.mark.parametrize("modules", [[TRANSFORMER, DENSE, POOLING], [TRANSFORMER, POOLING, NORMALIZE, DENSE]])
def test_matrices_elsewhere_are_refused(modules: Any, tmp_path: Path) -> None:
    write(tmp_path, modules, chosen("mean_tokens"))
    with pytest.raises(ConfigError, match="'Dense', which is not supported at this position"):
        read_pooling(tmp_path)


def test_other_modules_are_refused(tmp_path: Path) -> None:
    other = {"idx": 2, "name": "2", "path": "2_LSTM", "type": "sentence_transformers.models.LSTM"}
    write(tmp_path, [TRANSFORMER, POOLING, other], chosen("mean_tokens"))
    with pytest.raises(ConfigError, match="'LSTM', which is not supported"):
        read_pooling(tmp_path)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    write(tmp_path, [TRANSFORMER, POOLING])
    with pytest.raises(ConfigError, match="1_Pooling/config.json cannot be read"):
        read_pooling(tmp_path)
    (tmp_path / "modules.json").write_text("{")
    with pytest.raises(ConfigError, match="modules.json cannot be read"):
        read_pooling(tmp_path)
