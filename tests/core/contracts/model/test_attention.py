"""Optional capabilities of attention backends: fused RoPE and KV store, and attention weights (log-sum-exp)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, Olmo2Config, Phi3Config, Qwen3Config

from sglang_plug import (
    Attention,
    AttentionBackend,
    AttentionShape,
    BuildEnv,
    ConfigError,
    ForwardBatch,
    FusedStoreCapable,
    Kernels,
    KVPool,
)
from sglang_plug.contracts.model import kernels as definitions
from sglang_plug.contracts.model.batch import BidirectionalImage, MultimodalInputs
from sglang_plug.testing import check_model
from sglang_plug.testing.model.attention_inputs import make_batch
from sglang_plug_backends.torch_native.attention import TorchAttention

CPU = torch.device("cpu")
SHAPE = AttentionShape(heads=4, kv_heads=2, dim=16, layers=2)
CONFIG: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
FAMILIES = {
    "plain": ("LlamaForCausalLM", LlamaConfig(**CONFIG)),
    "normalised heads": ("Qwen3ForCausalLM", Qwen3Config(**CONFIG, head_dim=16)),
    "partly rotated": ("Phi3ForCausalLM", Phi3Config(**CONFIG, partial_rotary_factor=0.5)),
    "rotated in float32": ("Olmo2ForCausalLM", Olmo2Config(**CONFIG)),
}


class Fused:
    """A kernel set that counts the calls of its fused function for RoPE and the KV store."""

    def __init__(self) -> None:
        self.calls = 0

    @property
    def kernels(self) -> Kernels:
        return Kernels(name="fused", rope_store=self.rope_store)

    def rope_store(self, *arguments: Any) -> tuple[Tensor, Tensor]:
        self.calls += 1
        return definitions.rope_store(*arguments)


class Plain(AttentionBackend):
    """A backend that implements ``plan`` and ``run`` only, and none of the optional methods."""

    def __init__(self, shape: AttentionShape, device: torch.device, settings: Any = None) -> None:
        super().__init__(shape, device, settings)
        self._inner = TorchAttention(shape, device)

    def plan(self, batch: ForwardBatch) -> None:
        self._inner.plan(batch)

    def run(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        return self._inner.run(layer, q, k, v, batch)


class Negated(TorchAttention):
    """A subclass that overrides ``run`` alone."""

    def run(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        return -super().run(layer, q, k, v, batch)


def rotated(backend: AttentionBackend, kernels: Kernels, kv: KVPool | None) -> tuple[Tensor, Attention]:
    """Return the output of one layer for three new tokens, and the layer."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(3, heads, 16, generator=generator) for heads in (4, 2, 2))
    angles = torch.randn(3, 4, generator=generator).repeat(1, 2)
    layer = Attention(BuildEnv(attention=backend, kernels=kernels), 1, scale=0.3)
    batch = make_batch([[5, 3, 8]], [3], kv=kv, device=CPU)
    backend.plan(batch)
    actual: Tensor = layer.rotary(q, k, v, angles.cos(), angles.sin(), batch)
    return actual, layer


def pool(shape: AttentionShape = SHAPE) -> KVPool:
    return KVPool.of(shape, slots=9, dtype=torch.float32, device=CPU)


def test_one_kernel_gives_the_same_as_two_steps() -> None:
    fused, pools = Fused(), [pool(), pool()]
    expected, layer = rotated(TorchAttention(SHAPE, CPU), Kernels(), pools[0])
    assert not layer.fuses_rope
    actual, layer = rotated(TorchAttention(SHAPE, CPU), fused.kernels, pools[1])
    assert layer.fuses_rope and fused.calls == 1
    assert torch.equal(actual, expected)
    assert all(map(torch.equal, pools[0].k + pools[0].v, pools[1].k + pools[1].v)) and pools[1].k[1].any()


def test_a_backend_that_stores_by_itself_goes_on_doing_so() -> None:
    fused, pools = Fused(), [pool(), pool()]
    expected, _ = rotated(TorchAttention(SHAPE, CPU), Kernels(), pools[0])
    actual, layer = rotated(Plain(SHAPE, CPU), fused.kernels, pools[1])
    assert torch.equal(actual, expected) and not layer.fuses_rope and fused.calls == 0
    assert torch.equal(pools[0].k[1], pools[1].k[1])


def test_a_subclass_that_replaces_run_is_not_passed_by() -> None:
    fused = Fused()
    expected, _ = rotated(TorchAttention(SHAPE, CPU), Kernels(), pool())
    actual, layer = rotated(Negated(SHAPE, CPU), fused.kernels, pool())
    assert torch.equal(actual, -expected) and not layer.fuses_rope and fused.calls == 0
    assert isinstance(Negated(SHAPE, CPU), FusedStoreCapable)


def test_without_a_pool_there_is_nothing_to_store() -> None:
    fused = Fused()
    expected, _ = rotated(TorchAttention(SHAPE, CPU), Kernels(), None)
    actual, _ = rotated(TorchAttention(SHAPE, CPU), fused.kernels, None)
    assert torch.equal(actual, expected) and fused.calls == 0


def test_values_that_are_a_part_of_keys_are_not_turned_with_them() -> None:
    latent = replace(SHAPE, kv_heads=1, value_dim=8, values_in_keys=True)
    layer = Attention(BuildEnv(attention=TorchAttention(latent, CPU), kernels=Fused().kernels), 0, scale=1.0)
    assert not layer.fuses_rope


def test_a_sink_takes_its_share() -> None:
    shape = replace(SHAPE, sinks=True)
    backend = TorchAttention(shape, CPU)
    layer = Attention(BuildEnv(attention=backend), 0, scale=0.3)
    batch = make_batch([[5, 3, 8]], [3], kv=pool(shape), device=CPU)
    backend.plan(batch)
    q, k, v = torch.zeros(3, 4, 16), torch.zeros(3, 2, 16), torch.ones(3, 2, 16)
    sinks = torch.tensor([0.0, math.log(3.0), -math.inf, math.inf])
    actual = layer.with_sinks(q, k, v, sinks, batch)
    shares = [[visible / (visible + sink) for sink in (1.0, 3.0, 0.0, math.inf)] for visible in (1.0, 2.0, 3.0)]
    assert torch.allclose(actual, torch.tensor(shares)[..., None].expand(3, 4, 16))


@pytest.mark.parametrize("backend", [Plain, Negated])
def test_a_backend_that_does_not_weigh_is_refused_where_sinks_are(backend: type[AttentionBackend]) -> None:
    """A subclass that overrides ``run`` loses the attention weights of its base class."""
    Attention(BuildEnv(attention=backend(SHAPE, CPU)), 0, scale=1.0)
    with pytest.raises(ConfigError, match=f"attention sinks, which {backend.__name__} does not do; use --attention"):
        Attention(BuildEnv(attention=backend(replace(SHAPE, sinks=True), CPU)), 0, scale=1.0)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("attention", [TorchAttention, Plain])
@pytest.mark.parametrize("fused", [False, True])
def test_tokens_of_an_image_attend_to_each_other(
    window: int | None, attention: type[AttentionBackend], fused: bool
) -> None:
    """The results equal masked attention over all tokens, whatever the backend supports."""
    generator = torch.Generator().manual_seed(1)
    backend, kernels = attention(SHAPE, CPU), Fused().kernels if fused else Kernels()
    layer = Attention(BuildEnv(attention=backend, kernels=kernels), 1, scale=0.3, window=window)
    contexts, counts = [[5, 3, 8, 1, 2, 9, 4], [6, 7, 10]], [5, 3]
    kv = KVPool.of(SHAPE, slots=11, dtype=torch.float32, device=CPU)
    before = torch.randn(2, 2, 2, 16, generator=generator)  # keys and values of tokens that are in the pool already
    kv.store(1, before[0], before[1], torch.tensor([5, 3]))
    batch = make_batch(contexts, counts, kv=kv, device=CPU)
    images = (
        BidirectionalImage(sequence=0, row=1, position=3, count=3),
        BidirectionalImage(sequence=1, row=5, position=0, count=2),
    )
    batch.multimodal = MultimodalInputs(torch.tensor([1, 2, 3, 5, 6]), torch.zeros(5, 1), bidirectional_images=images)
    q, k, v = (torch.randn(8, heads, 16, generator=generator) for heads in (4, 2, 2))
    still = torch.ones(8, 16), torch.zeros(8, 16)
    backend.plan(batch)
    actual = layer.rotary(q, k, v, *still, batch)
    rows = [(q[:5], torch.cat((before[0], k[:5])), torch.cat((before[1], v[:5])), range(3, 6))]
    rows.append((q[5:], k[5:], v[5:], range(2)))
    expected = [seen_by_mask(*row, window) for row in rows]
    torch.testing.assert_close(actual, torch.cat(expected))


def seen_by_mask(q: Tensor, k: Tensor, v: Tensor, image: range, window: int | None) -> Tensor:
    length = len(k)
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    mask[image.start : image.stop, image.start : image.stop] = True
    if window is not None:
        mask &= torch.arange(length) > torch.arange(length)[:, None] - window
    k, v = (tensor.repeat_interleave(2, dim=1) for tensor in (k, v))
    logits = torch.einsum("qhd,khd->hqk", q, k) * 0.3
    logits = logits.masked_fill(~mask[-len(q) :], -math.inf)
    return torch.einsum("hqk,khd->qhd", logits.softmax(-1), v)


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("attention", [TorchAttention, Plain])
def test_models_are_the_same_either_way(family: str, attention: type[AttentionBackend]) -> None:
    fused = Fused()
    check_model(*FAMILIES[family], kernels=fused.kernels, attention=attention)
    assert (fused.calls > 0) is (attention is TorchAttention)
