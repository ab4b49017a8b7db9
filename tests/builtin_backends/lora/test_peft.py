"""Adapter folders in PEFT's format: valid, damaged and unsupported ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from sglang_plug import AdaptableLayer, Adapter, AdapterRequest, ConfigError
from sglang_plug.testing import check_adapter_format
from sglang_plug_backends.lora.peft import read_lora
from tests.peft_adapters import make_lora

Q, K, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj", "model.layers.0.mlp.down_proj"
QKV = "model.layers.0.self_attn.qkv_proj"


class Tiny(nn.Module):
    """Modules under their names in transformers."""

    def __init__(self) -> None:
        super().__init__()
        for name, sizes in ((Q, (6, 8)), (K, (6, 4)), (DOWN, (10, 6)), ("lm_head", (6, 12))):
            here: nn.Module = self
            *path, last = name.split(".")
            for part in path:
                if not hasattr(here, part):
                    here.add_module(part, nn.Module())
                here = here.get_submodule(part)
            here.add_module(last, nn.Linear(*sizes, bias=False))


def request(path: Path, root: str = "model.") -> AdapterRequest:
    attention = {
        f"{root}{item.removeprefix('model.')}": columns for item, columns in ((Q, slice(0, 8)), (K, slice(8, 12)))
    }
    return AdapterRequest(
        path=path,
        layers=(
            AdaptableLayer(name=QKV, size_in=6, size_out=12, parts=attention),
            AdaptableLayer(name=DOWN, size_in=10, size_out=6, parts={f"{root}layers.0.mlp.down_proj": slice(0, 6)}),
        ),
        device=torch.device("cpu"),
        dtype=torch.float32,
    )


def read(path: Path, **more: Any) -> Adapter:
    result = read_lora(request(path, **more), None)
    assert result is not None
    return result


def product(adapter: Adapter, name: str, x: torch.Tensor, size: int) -> torch.Tensor:
    """Return the product that the adapter adds to a layer's output."""
    y = torch.zeros(len(x), size)
    adapter.layers[name].after(x, y)
    return y


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"alpha": 3, "rank": 5},
        {"stabilized": True},
        {"ranks": {Q: 2}, "alphas": {K: 32}},
        {"dtype": torch.bfloat16},
    ],
)
def test_adds_the_scaled_product(tmp_path: Path, options: dict[str, Any]) -> None:
    lora = make_lora(tmp_path, Tiny(), [Q, K, DOWN], **options)
    adapter = read(tmp_path)
    for name, parts in ((QKV, (Q, K)), (DOWN, (DOWN,))):
        x = torch.randn(5, lora.targets[parts[0]][0].shape[1])
        expected = [
            lora.scales[part] * x @ (lora.targets[part][1].float() @ lora.targets[part][0].float()).T for part in parts
        ]
        joined = torch.cat(expected, 1)
        torch.testing.assert_close(product(adapter, name, x, joined.shape[1]), joined, rtol=1e-4, atol=1e-4)


def test_a_part_alone_leaves_the_others(tmp_path: Path) -> None:
    make_lora(tmp_path, Tiny(), [K])
    adapter = read(tmp_path)
    assert set(adapter.layers) == {QKV} and adapter.facts == {"format": "lora", "rank": 4}
    added = product(adapter, QKV, torch.randn(3, 6), 12)
    assert not added[:, :8].any() and added[:, 8:].all()


@pytest.mark.parametrize("pattern", ["q_proj", r"layers\.\d\.self_attn\.q_proj", Q, "^" + Q])
def test_patterns_stand_for_the_end_of_a_name(tmp_path: Path, pattern: str) -> None:
    make_lora(tmp_path, Tiny(), [Q, K], alphas={Q: 32})
    expected = product(read(tmp_path), QKV, torch.ones(1, 6), 12)
    change_config(tmp_path, alpha_pattern={pattern: 32})
    assert torch.equal(product(read(tmp_path), QKV, torch.ones(1, 6), 12), expected)
    change_config(tmp_path, alpha_pattern={"_proj": 32, "proj": 32})
    assert not torch.equal(product(read(tmp_path), QKV, torch.ones(1, 6), 12), expected)


def test_ranks_and_alphas_are_looked_up_by_patterns_of_their_own(tmp_path: Path) -> None:
    make_lora(tmp_path, Tiny(), [Q], alphas={Q: 64})
    expected = product(read(tmp_path), QKV, torch.ones(1, 6), 12)
    change_config(tmp_path, r=16, rank_pattern={Q: 4}, alpha_pattern={"q_proj": 64})
    assert torch.equal(product(read(tmp_path), QKV, torch.ones(1, 6), 12), expected)


@pytest.mark.parametrize("root", ["", "model.", "language_model.model.", "model.language_model."])
def test_modules_around_the_layers_may_have_other_names(tmp_path: Path, root: str) -> None:
    make_lora(tmp_path, Tiny(), [Q, DOWN])
    assert set(read(tmp_path, root=root).layers) == {QKV, DOWN}


def test_names_of_older_files(tmp_path: Path) -> None:
    make_lora(tmp_path, Tiny(), [Q])
    change_tensors(tmp_path, lambda tensors: {key.replace("_A.", "_A.default."): t for key, t in tensors.items()})
    assert set(read(tmp_path).layers) == {QKV}


def test_joined_adapters_are_as_each_alone(tmp_path: Path) -> None:
    loras = [
        make_lora(tmp_path / str(seed), Tiny(), names, rank=rank, seed=seed)
        for seed, (names, rank) in enumerate((([Q], 2), ([Q, K], 5), ([K], 3)))
    ]
    layers: list[Any] = [read(item.path).layers[QKV] for item in loras]
    x, which = torch.randn(7, 6), torch.tensor([0, 3, 2, 1, 1, 3, 0])
    x[1] = torch.inf  # this row has no adapter, and must not change the other rows
    together = torch.zeros(7, 12)
    type(layers[0]).join(layers)(x, together, which)
    for row, number in enumerate(which.tolist()):
        alone = torch.zeros(1, 12)
        if number < len(layers):
            layers[number].after(x[row : row + 1], alone)
            torch.testing.assert_close(together[row : row + 1], alone)


def test_the_format_conforms(tmp_path: Path) -> None:
    for seed, (names, rank) in enumerate((([Q, DOWN], 2), ([Q, K, DOWN], 5), ([K], 3))):
        make_lora(tmp_path / str(seed), Tiny(), names, rank=rank, seed=seed)
    paths = [tmp_path / str(seed) for seed in range(3)]
    check_adapter_format("lora", paths, request(tmp_path).layers)
    check_adapter_format("lora", paths, request(tmp_path).layers, dtype=torch.bfloat16, tolerance=0.05)


def test_another_adapters_overflow_is_nothing(tmp_path: Path) -> None:
    for seed in (0, 1):
        make_lora(tmp_path / str(seed), Tiny(), [Q], seed=seed)
    change_tensors(tmp_path / "1", lambda tensors: {name: tensor * 1e38 for name, tensor in tensors.items()})
    layers: list[Any] = [read(tmp_path / str(seed)).layers[QKV] for seed in (0, 1)]
    y = torch.zeros(2, 12)
    type(layers[0]).join(layers)(torch.full((2, 6), 100.0), y, torch.tensor([0, 2]))
    assert y.isfinite().all() and not y[1].any() and y[0].any()


def test_other_formats_are_left_to_others(tmp_path: Path) -> None:
    assert read_lora(request(tmp_path), None) is None
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "IA3"}')
    assert read_lora(request(tmp_path), None) is None


def change_config(path: Path, **changes: Any) -> None:
    file = path / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def change_tensors(path: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    file = path / "adapter_model.safetensors"
    save_file({name: tensor.clone() for name, tensor in change(load_file(file)).items()}, file)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_dora": True}, "use_dora is set: DoRA needs"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is set"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
        ({"lora_bias": True}, "lora_bias"),
        ({"alora_invocation_tokens": [3]}, "alora_invocation_tokens"),
        ({"trainable_token_indices": [3]}, "embeddings cannot be adapted"),
        ({"target_parameters": ["experts"]}, "target_parameters"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"init_lora_weights": "pissa_niter_4"}, "'pissa_niter_4', which changes the base model"),
        ({"r": 0}, "whole numbers above 0"),
        ({"r": True}, "whole numbers above 0"),
        ({"r": 4.0}, "whole numbers above 0"),
        ({"rank_pattern": {"x": "4"}}, "whole numbers above 0"),
        ({"rank_pattern": [4]}, "must be objects"),
        ({"lora_alpha": "8"}, "must be numbers"),
        ({"lora_alpha": float("nan")}, "must be numbers"),
        ({"alpha_pattern": {"(": 4}}, "'(' is not an expression"),
        ({"r": 7}, "are [4, 6] and [8, 4], but the model and adapter_config.json want [7, 6] and [8, 7]"),
    ],
)
def test_unsupported_features_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    make_lora(tmp_path, Tiny(), [Q])
    change_config(tmp_path, **changes)
    with pytest.raises(ConfigError) as raised:
        read(tmp_path)
    assert message in str(raised.value) and str(tmp_path) in str(raised.value)


A, B = f"base_model.model.{Q}.lora_A.weight", f"base_model.model.{Q}.lora_B.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda all: {A: all[A]}, "has no lora_B of"),
        (lambda all: {B: all[B]}, "has no lora_A of"),
        (lambda all: {A: all[A][:, :3], B: all[B]}, "are [4, 3] and [8, 4]"),
        (lambda all: {A: all[A], B: all[B] / 0}, "not finite"),
        (lambda all: {A: all[A], B: all[B].int()}, "no fractions"),
        (lambda all: {**all, "base_model.model.score.weight": all[A]}, "neither lora_A nor lora_B of a matrix"),
        (lambda all: {**all, A.replace("lora_A.weight", "lora_magnitude_vector"): all[A]}, "lora_magnitude_vector"),
        (lambda all: {key.replace("q_proj", "z_proj"): t for key, t in all.items()}, "cannot be adapted in this model"),
        (lambda all: {key.replace("model.layers", "vision.layers"): t for key, t in all.items()}, "cannot be adapted"),
    ],
)
def test_damaged_tensors_are_named(tmp_path: Path, change: Any, message: str) -> None:
    make_lora(tmp_path, Tiny(), [Q])
    change_tensors(tmp_path, change)
    with pytest.raises(ConfigError) as raised:
        read(tmp_path)
    assert message in str(raised.value) and str(tmp_path) in str(raised.value)


def test_the_head_is_no_layer(tmp_path: Path) -> None:
    make_lora(tmp_path, Tiny(), ["lm_head"])
    with pytest.raises(
        ConfigError, match="adapts modules that cannot be adapted in this model: 'lm_head'; only matrices of"
    ):
        read(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("adapter_config.json", "{", "cannot be read"),
        ("adapter_config.json", "[" * 100_000, "cannot be read"),
        ("adapter_config.json", "[]", "is not a JSON object"),
        ("adapter_model.safetensors", "nonsense", "is the file complete?"),
        ("adapter_model.safetensors", None, "is missing"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, file: str, content: str | None, message: str) -> None:
    make_lora(tmp_path, Tiny(), [Q])
    if content is None:
        (tmp_path / file).rename(tmp_path / "adapter_model.bin")
        message = "is missing; adapter_model.bin is not read, only safetensors are"
    else:
        (tmp_path / file).write_text(content)
    with pytest.raises(ConfigError) as raised:
        read(tmp_path)
    assert message in str(raised.value) and file in str(raised.value)
