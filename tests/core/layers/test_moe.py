"""Layers of experts: the mapping of checkpoint tensors, of which none may be missing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from sglang_plug import BuildEnv, Model, WeightError
from sglang_plug.layers import Experts, Router

ENV = BuildEnv(attention=None)  # type: ignore[arg-type]
COUNT, WIDTH, HIDDEN = 3, 4, 5
OTHER_NAMES = {"w1": "gate", "w3": "up", "w2": "down"}


class Toy(Model):
    packed = {"gate_proj": ("gate_up_proj", "gate"), "up_proj": ("gate_up_proj", "up"), "moe": ("mlp", None)}

    def __init__(self, **names: dict[str, str]) -> None:
        super().__init__(SimpleNamespace(), ENV)
        self.mlp = nn.Module()
        self.mlp.experts = Experts(HIDDEN, WIDTH, COUNT, ENV, **names)  # type: ignore[arg-type]


def one_by_one(
    path: str = "mlp", gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj"
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {gate: (WIDTH, HIDDEN), up: (WIDTH, HIDDEN), down: (HIDDEN, WIDTH)}
    return {
        f"{path}.experts.{expert}.{name}.weight": torch.randn(*shape, generator=generator)
        for expert in range(COUNT)
        for name, shape in shapes.items()
    }


def fused(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    parts = list(tensors.values())
    gate_up = [torch.cat(parts[3 * expert : 3 * expert + 2]) for expert in range(COUNT)]
    return {"mlp.experts.gate_up_proj": torch.stack(gate_up), "mlp.experts.down_proj": torch.stack(parts[2::3])}


def test_both_layouts_and_other_names_fill_the_same_weights() -> None:
    first, second, third = Toy(), Toy(), Toy(names=OTHER_NAMES)
    first.load_weights(one_by_one().items())
    second.load_weights(fused(one_by_one()).items())
    third.load_weights(reversed(one_by_one("moe", "w1", "w3", "w2").items()))
    for name, weight in first.named_parameters():
        assert torch.equal(weight, second.get_parameter(name))
        assert torch.equal(weight, third.get_parameter(name))
    assert torch.equal(first.mlp.experts.gate_up_proj.weight[1, WIDTH:], one_by_one()["mlp.experts.1.up_proj.weight"])


@pytest.mark.parametrize("missing", list(one_by_one()))
def test_every_part_of_every_expert_must_arrive(missing: str) -> None:
    tensors = one_by_one()
    del tensors[missing]
    expert, part = missing.split(".")[2], missing.split(".")[3].removesuffix("_proj")
    ours = "down_proj" if part == "down" else "gate_up_proj"
    with pytest.raises(WeightError) as caught:
        Toy().load_weights(tensors.items())
    assert f"1 parameters unfilled, first 'mlp.experts.{ours}.weight' ('{expert}.{part}' is missing)" in str(
        caught.value
    )


def test_many_missing_parts_are_counted() -> None:
    kept = {name: tensor for name, tensor in one_by_one().items() if ".0.gate" in name or "down" in name}
    with pytest.raises(WeightError, match=r"\('0.up' is missing, '1.gate' is missing, '1.up' is missing and 2 more\)"):
        Toy().load_weights(kept.items())


def test_a_layer_without_any_expert_is_unfilled() -> None:
    with pytest.raises(WeightError, match=r"leaves 2 parameters unfilled.*\(no tensor for it\)"):
        Toy().load_weights([])


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("mlp.experts.3.up_proj.weight", (WIDTH, HIDDEN), "'mlp.experts.3.up_proj.weight'.*there are 3 experts"),
        ("mlp.experts.0.up_proj.weight", (HIDDEN, WIDTH), r"expected shape \(4, 5\), found \(5, 4\)"),
        ("mlp.experts.gate_up_proj", (COUNT, HIDDEN, 2 * WIDTH), r"expected shape \(3, 8, 5\), found \(3, 5, 8\)"),
        ("mlp.experts.0.up_proj.bias", (WIDTH,), "has 'mlp.experts.0.up_proj.bias' but Toy has no"),
        ("mlp.experts.0.w1.weight", (WIDTH, HIDDEN), "has 'mlp.experts.0.w1.weight' but Toy has no"),
        ("mlp.experts.x.up_proj.weight", (WIDTH, HIDDEN), "Toy has no"),
    ],
)
def test_an_unexpected_tensor_is_refused(name: str, shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(WeightError, match=words):
        Toy().load_weights({**one_by_one(), name: torch.zeros(shape)}.items())


def router(normalise: bool) -> Router:
    router = Router(2, 4, 2, ENV, layer=7, normalise=normalise)
    router.weight = nn.Parameter(torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 0.0], [-1.0, 3.0]]))
    return router


@torch.inference_mode()
def test_a_router_chooses_the_most_probable() -> None:
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    experts, weights = router(normalise=False).choose(x)
    assert experts[0].tolist() == [1, 2]
    assert experts[1, 0] == 3
    expected = torch.tensor([0.0, 2.0, 1.0, -1.0]).softmax(0)
    torch.testing.assert_close(weights[0], expected[[1, 2]])
    _, normalised = router(normalise=True).choose(x)
    torch.testing.assert_close(normalised, weights / weights.sum(-1, keepdim=True))


@torch.inference_mode()
def test_a_watcher_sees_what_is_chosen() -> None:
    watched, choices = router(normalise=True), list[tuple[int, list[list[int]]]]()
    x = torch.tensor([[1.0, 0.0]])
    watched.choose(x)
    watched.watcher = lambda layer, experts: choices.append((layer, experts.tolist()))
    watched.choose(x)
    watched.watcher = None
    watched.choose(x)
    assert choices == [(7, [[1, 2]])]


class Ungated(Model):
    def __init__(self) -> None:
        super().__init__(SimpleNamespace(), ENV)
        self.experts = Experts(HIDDEN, WIDTH, COUNT, ENV, activation_name="relu2", gated=False)


def test_experts_without_gates() -> None:
    """Experts without gates are loaded from both layouts, and their product equals the definition."""
    draw = torch.Generator().manual_seed(1)
    up, down = torch.randn(COUNT, WIDTH, HIDDEN, generator=draw), torch.randn(COUNT, HIDDEN, WIDTH, generator=draw)
    fused, each = Ungated(), Ungated()
    fused.load_weights({"experts.up_proj": up, "experts.down_proj": down}.items())
    each.load_weights(
        (f"experts.{expert}.{name}.weight", part[expert])
        for name, part in (("up_proj", up), ("down_proj", down))
        for expert in range(COUNT)
    )
    x, experts, weights = torch.randn(7, HIDDEN, generator=draw), torch.tensor([[1, 2]] * 7), torch.rand(7, 2)
    expected = sum(
        weights[:, [column]] * ((x @ up[expert].T).relu() ** 2 @ down[expert].T) for column, expert in enumerate((1, 2))
    )
    for model in (fused, each):
        torch.testing.assert_close(model.experts(x, experts, weights), expected)
    with pytest.raises(WeightError, match="unfilled"):
        Ungated().load_weights({"experts.down_proj": down}.items())
