from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from sglang_plug import AttentionShape, Model, WeightError
from sglang_plug.config import ConfigError


class Joined(nn.Module):
    """A layer whose weight combines two matrices of the checkpoint."""

    shards = ("left", "right")

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 3))

    def load_shard(self, parameter: Tensor, tensor: Tensor, shard: str | None) -> None:
        if shard is None:
            parameter.copy_(tensor)
        else:
            parameter[{"left": slice(0, 2), "right": slice(2, 4)}[shard]].copy_(tensor)


class Toy(Model):
    packed = {"a_proj": ("joined", "left"), "b_proj": ("joined", "right")}
    ignored = ("inv_freq",)

    def __init__(self) -> None:
        super().__init__(SimpleNamespace(), SimpleNamespace(quantization=None))  # type: ignore[arg-type]
        self.embed = nn.Embedding(5, 3)
        self.joined = Joined()
        self.head_ = nn.Linear(3, 5, bias=False)
        self.head_.weight = self.embed.weight


def tensors() -> dict[str, Tensor]:
    return {
        "embed.weight": torch.ones(5, 3),
        "a_proj.weight": torch.full((2, 3), 2.0),
        "b_proj.weight": torch.full((2, 3), 3.0),
        "layers.inv_freq": torch.zeros(1),
    }


def test_shards_go_to_their_rows_and_ignored_names_are_passed_over() -> None:
    model = Toy()
    model.load_weights(tensors().items())
    assert model.joined.weight[:, 0].tolist() == [2, 2, 3, 3]
    assert model.head_.weight is model.embed.weight


def test_a_tied_weight_may_be_repeated_or_come_under_either_name() -> None:
    repeated = {**tensors(), "head_.weight": torch.ones(5, 3)}
    Toy().load_weights(repeated.items())
    del repeated["embed.weight"]
    model = Toy()
    model.load_weights(repeated.items())
    assert model.embed.weight.eq(1).all()


@pytest.mark.parametrize("first", ["embed.weight", "head_.weight"])
def test_tied_weights_with_values_of_their_own_are_tied_no_longer(first: str) -> None:
    model, own = Toy(), {"embed.weight": torch.full((5, 3), 7.0), "head_.weight": torch.full((5, 3), 8.0)}
    others = {name: tensor for name, tensor in tensors().items() if name not in own}
    model.load_weights([(first, own.pop(first)), *others.items(), *own.items()])
    assert model.embed.weight.eq(7).all() and model.head_.weight.eq(8).all()


def test_a_whole_matrix_under_our_own_name_is_taken() -> None:
    actual = tensors()
    del actual["a_proj.weight"], actual["b_proj.weight"]
    Toy().load_weights({**actual, "joined.weight": torch.ones(4, 3)}.items())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"b_proj.weight": None}, "leaves 1 parameters unfilled, first 'joined.weight'"),
        ({"embed.weight": None}, "unfilled, first 'embed.weight'"),
        ({"stranger.weight": torch.zeros(1)}, "has 'stranger.weight' but Toy has no 'stranger.weight'"),
        ({"embed.weight": torch.zeros(4, 3)}, r"'embed.weight' does not fit.*\(5, 3\), found \(4, 3\)"),
        ({"a_proj.weight": torch.zeros(3, 3)}, "'a_proj.weight' does not fit 'joined.weight'"),
    ],
)
def test_loading_is_strict_both_ways(change: dict[str, Tensor | None], words: str) -> None:
    actual = {name: tensor for name, tensor in {**tensors(), **change}.items() if tensor is not None}
    with pytest.raises(WeightError, match=words) as caught:
        Toy().load_weights(actual.items())
    assert isinstance(caught.value, ConfigError)


def test_geometry_follows_the_usual_names() -> None:
    config = SimpleNamespace(num_attention_heads=8, hidden_size=64, num_hidden_layers=2)
    assert Model.attention_shape(config) == AttentionShape(heads=8, kv_heads=8, dim=8, layers=2)
    config = SimpleNamespace(num_attention_heads=8, num_key_value_heads=2, head_dim=16, num_hidden_layers=2)
    assert Model.attention_shape(config) == AttentionShape(heads=8, kv_heads=2, dim=16, layers=2)
