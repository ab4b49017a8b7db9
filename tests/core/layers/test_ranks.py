"""The results of tensor-parallel ranks, summed or concatenated, equal the result of the whole layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from sglang_plug import AttentionBackend, AttentionShape, BuildEnv, Collectives, ConfigError
from sglang_plug.contracts.serving.executor import SINGLE_RANK, shard_slice
from sglang_plug.layers import (
    ColumnParallelLinear,
    Embedding,
    Experts,
    GateUpLinear,
    MergedColumnParallelLinear,
    ParallelLMHead,
    RMSNorm,
    RowParallelLinear,
    SharedRMSNorm,
)
from sglang_plug_backends.torch_native.attention import TorchAttention

HIDDEN, WIDTH, TOKENS = 12, 24, 5


class CapturedCollectives(Collectives):
    """Collectives of a rank that computes alone; they keep its tensors for the test to combine."""

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        return x.repeat(1, self.size)  # all ranks' columns are present, but only this rank's are right

    def broadcast(self, x: Tensor) -> None: ...


class Reduced(CapturedCollectives):
    """Collectives of a rank that computes alone; the test supplies the sum over all ranks."""

    def __init__(self, rank: int, size: int, total: Tensor) -> None:
        super().__init__(rank, size)
        self.total = total

    def all_reduce(self, x: Tensor) -> Tensor:
        return self.total


def env(rank: int = 0, size: int = 1) -> BuildEnv:
    backend: AttentionBackend = TorchAttention(
        AttentionShape(heads=1, kv_heads=1, dim=4, layers=1), torch.device("cpu")
    )
    return BuildEnv(attention=backend, ranks=CapturedCollectives(rank, size) if size > 1 else SINGLE_RANK)


@torch.no_grad()
def filled(build: Callable[[BuildEnv], nn.Module], tensors: dict[str, Tensor], size: int) -> list[nn.Module]:
    """Return a layer for each rank, loaded with that rank's shards of ``tensors``, whose keys may end in a shard's
    name."""
    layers = []
    for rank in range(size):
        layer: Any = build(env(rank, size))
        for name, tensor in tensors.items():
            target, _, shard = name.partition(":")
            parameter = layer.get_parameter(target)
            layer.get_submodule(target.rpartition(".")[0]).load_shard(parameter, tensor, shard or None)
        for module in layer.modules():
            if hasattr(module, "pack_weights"):
                module.pack_weights()
        layers.append(layer)
    return layers


def random_tensor(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("apart", [False, True], ids=["one tensor", "a tensor for each part"])
def test_gated_and_row_make_an_mlp(size: int, bias: bool, apart: bool) -> None:
    gate, up, down = (
        random_tensor(WIDTH, HIDDEN),
        random_tensor(WIDTH, HIDDEN, seed=2),
        random_tensor(HIDDEN, WIDTH, seed=3),
    )
    biases = random_tensor(2, WIDTH, seed=4), random_tensor(HIDDEN, seed=5)
    first = {"weight:gate": gate, "weight:up": up} if apart else {"weight": torch.cat([gate, up])}
    if bias:
        first |= {"bias:gate": biases[0][0], "bias:up": biases[0][1]} if apart else {"bias": biases[0].flatten()}
    second = {"weight": down, "bias": biases[1]} if bias else {"weight": down}
    x = random_tensor(TOKENS, HIDDEN, seed=6)
    wide = nn.functional.silu(x @ gate.T + (biases[0][0] if bias else 0)) * (x @ up.T + (biases[0][1] if bias else 0))
    expected = wide @ down.T + (biases[1] if bias else 0)
    gated = filled(lambda env: GateUpLinear(HIDDEN, WIDTH, env, activation_name="silu", bias=bias), first, size)
    rows = filled(lambda env: RowParallelLinear(WIDTH, HIDDEN, env, bias=bias), second, size)
    parts = [row(half(x)) for half, row in zip(gated, rows, strict=True)]
    torch.testing.assert_close(torch.stack(parts).sum(0), expected)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_heads_are_not_cut(size: int) -> None:
    heads = {"q": 8, "k": 2, "v": 2}
    parts = {name: count * 3 for name, count in heads.items()}
    weights = {name: random_tensor(rows, HIDDEN, seed=seed) for seed, (name, rows) in enumerate(parts.items())}
    layers: list[Any] = filled(
        lambda env: MergedColumnParallelLinear(HIDDEN, parts, env, heads=heads),
        {f"weight:{name}": weight for name, weight in weights.items()},
        size,
    )
    x = random_tensor(TOKENS, HIDDEN, seed=9)
    for rank, layer in enumerate(layers):
        for name, actual in zip(parts, layer.split(x), strict=True):
            whole = (x @ weights[name].T).unflatten(-1, (heads[name], 3))
            count = max(1, heads[name] // size)
            first = rank * heads[name] // size
            torch.testing.assert_close(actual.unflatten(-1, (-1, 3)), whole[:, first : first + count])


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_column_and_a_row(size: int) -> None:
    up, down, x = (
        random_tensor(WIDTH, HIDDEN),
        random_tensor(HIDDEN, WIDTH, seed=2),
        random_tensor(TOKENS, HIDDEN, seed=3),
    )
    columns: list[Any] = filled(lambda env: ColumnParallelLinear(HIDDEN, WIDTH, env, heads=8), {"weight": up}, size)
    rows = filled(lambda env: RowParallelLinear(WIDTH, HIDDEN, env), {"weight": down}, size)
    assert all(column.parts == {} and column.size_out == WIDTH // size for column in columns)
    parts = [row(column(x)) for column, row in zip(columns, rows, strict=True)]
    torch.testing.assert_close(torch.stack(parts).sum(0), x @ up.T @ down.T)
    if size == 2:
        with pytest.raises(ConfigError, match="3 heads cannot be shared by 2 ranks"):
            ColumnParallelLinear(HIDDEN, WIDTH, env(0, 2), heads=3)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("wide", [False, True])
def test_a_norm_over_all_heads(size: int, wide: bool) -> None:
    """The ranks' sums of squares are added; heads that several ranks have count once."""
    heads, dim = 4, 6
    weight, x = random_tensor(heads * dim), random_tensor(TOKENS, heads * dim, seed=2)
    whole = RMSNorm(heads * dim, 1e-5, env(), wide=wide)
    with torch.no_grad():
        whole.weight.copy_(weight)
    own = [shard_slice(heads * dim, env(rank, size).ranks, units=heads) for rank in range(size)]
    total = torch.stack([x[:, part].square().sum(-1, keepdim=True) for part in own]).sum(0)

    def build(env: BuildEnv) -> SharedRMSNorm:
        ranks = Reduced(env.ranks.rank, size, total) if size > 1 else env.ranks
        return SharedRMSNorm(heads, dim, 1e-5, replace(env, ranks=ranks), wide=wide)

    norms: list[Any] = filled(build, {"weight": weight}, size)
    for norm, part in zip(norms, own, strict=True):
        torch.testing.assert_close(norm(x[:, part]), whole(x)[:, part])
    with pytest.raises(ValueError, match=r"expected shape \(24,\), found \(12,\)"):
        norms[0].load_shard(norms[0].weight, torch.ones(12), None)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_head_gathers_all_tokens(size: int, tied: bool, bias: bool) -> None:
    """The size of the vocabulary need not be a multiple of the number of ranks."""
    vocabulary = 16
    weight, offset, x = (
        random_tensor(vocabulary, HIDDEN),
        random_tensor(vocabulary, seed=2),
        random_tensor(TOKENS, HIDDEN, seed=3),
    )
    expected = x @ weight.T + (offset if bias else 0)
    each = -(-vocabulary // size)
    for rank in range(size):
        surroundings = env(rank, size)
        embedding = Embedding(vocabulary, HIDDEN) if tied else None
        head = ParallelLMHead(HIDDEN, vocabulary, surroundings, tied=embedding, bias=bias)
        with torch.no_grad():
            assert head.weight is not None
            head.load_shard(head.weight, weight, None)
            if head.bias is not None:
                head.load_shard(head.bias, offset, None)
        head.pack_weights()
        actual = head(x)
        assert actual.shape == expected.shape
        own = slice(rank * each, min((rank + 1) * each, vocabulary))
        torch.testing.assert_close(actual[:, own], expected[:, own])
        if embedding is not None:
            torch.testing.assert_close(embedding(torch.arange(vocabulary)), weight)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("vocabulary", [16, 3])
def test_an_embedding_that_ranks_share_with_the_head(size: int, vocabulary: int) -> None:
    weight, x = random_tensor(vocabulary, HIDDEN), random_tensor(TOKENS, HIDDEN, seed=3)
    tokens, actual, each = torch.tensor([0, vocabulary - 1, 2, 1, 2]), [], -(-vocabulary // size)
    for rank in range(size):
        surroundings = env(rank, size)
        embedding = Embedding(vocabulary, HIDDEN, surroundings)
        head = ParallelLMHead(HIDDEN, vocabulary, surroundings, tied=embedding)
        with torch.no_grad():
            embedding.load_shard(embedding.weight, weight, None)
        assert head.weight is embedding.weight and len(embedding.weight) <= each
        assert embedding.whole_shape(embedding.weight) == (vocabulary, HIDDEN)
        head.pack_weights()
        own = slice(rank * each, min((rank + 1) * each, vocabulary))
        torch.testing.assert_close(head(x)[:, own], (x @ weight.T)[:, own])
        actual.append(embedding(tokens))
        with pytest.raises(ValueError, match="expected shape"):
            embedding.load_shard(embedding.weight, weight[:-1], None)
    assert torch.equal(torch.stack(actual).sum(0), weight[tokens]), "one rank has it, and it is not rounded"


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("apart", [False, True], ids=["two tensors", "three for each expert"])
def test_experts(size: int, apart: bool) -> None:
    count, width = 3, 8
    both, down = random_tensor(count, 2 * width, HIDDEN), random_tensor(count, HIDDEN, width, seed=2)
    tensors: dict[str, Tensor] = {"gate_up_proj.weight": both, "down_proj.weight": down}
    if apart:
        tensors = {}
        for expert in range(count):
            tensors[f"gate_up_proj.weight:{expert}.gate"] = both[expert, :width]
            tensors[f"gate_up_proj.weight:{expert}.up"] = both[expert, width:]
            tensors[f"down_proj.weight:{expert}.down"] = down[expert]
    x = random_tensor(TOKENS, HIDDEN, seed=3)
    chosen = torch.tensor([[0, 1], [1, 2], [2, 0], [0, 2], [1, 0]])
    weights = random_tensor(TOKENS, 2, seed=4).softmax(-1)
    parts = [
        layer(x, chosen, weights) for layer in filled(lambda env: Experts(HIDDEN, width, count, env), tensors, size)
    ]
    whole = filled(lambda env: Experts(HIDDEN, width, count, env), tensors, 1)[0](x, chosen, weights)
    torch.testing.assert_close(torch.stack(parts).sum(0), whole)


@pytest.mark.parametrize(
    ("build", "tensor", "shapes"),
    [
        (lambda env: RowParallelLinear(WIDTH, HIDDEN, env), (HIDDEN, WIDTH // 2), r"\(12, 24\), found \(12, 12\)"),
        (
            lambda env: MergedColumnParallelLinear(HIDDEN, {"a": 4, "b": 8}, env),
            (6, HIDDEN),
            r"\(12, 12\), found \(6, 12\)",
        ),
        (lambda env: ParallelLMHead(HIDDEN, 16, env), (8, HIDDEN), r"\(16, 12\), found \(8, 12\)"),
    ],
    ids=["Row", "Packed", "Head"],
)
def test_a_checkpoint_must_hold_the_whole(
    build: Callable[[BuildEnv], Any], tensor: tuple[int, ...], shapes: str
) -> None:
    layer = build(env(1, 2))
    with pytest.raises(ValueError, match=f"expected shape {shapes}"):
        layer.load_shard(layer.weight, torch.zeros(tensor), None)


@given(st.integers(1, 64), st.integers(1, 16), st.integers(1, 8))
def test_slices_cover_everything_evenly(units: int, size: int, each: int) -> None:
    ranks = [CapturedCollectives(rank, size) for rank in range(size)]
    if units % size and size % units:
        with pytest.raises(
            ConfigError, match=f"{units} heads cannot be shared by {size} ranks; choose another --tp-size"
        ):
            shard_slice(units * each, ranks[0], units=units, label="heads")
        return
    slices = [shard_slice(units * each, rank, units=units) for rank in ranks]
    assert len({part.stop - part.start for part in slices}) == 1
    covered = [row for part in slices for row in range(part.start, part.stop)]
    assert sorted(set(covered)) == list(range(units * each))
    assert all(part.start % each == 0 for part in slices), "no head is cut"
    assert [part.start for part in slices] == sorted(part.start for part in slices)


def test_the_shape_of_a_rank() -> None:
    shape = AttentionShape(heads=8, kv_heads=2, dim=4, layers=3)
    assert shape.of_rank(2) == replace(shape, heads=4, kv_heads=1)
    assert shape.of_rank(4) == replace(shape, heads=2, kv_heads=1)
    for size in (3, 16):
        with pytest.raises(ConfigError, match=f"--tp-size {size}: the model's 8 attention heads, 2 of them"):
            shape.of_rank(size)
