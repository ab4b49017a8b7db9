from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from sglang_plug import Attention, AttentionBackend, ConfigError, ForwardBatch, FusedStoreCapable, GraphCapable, KVPool
from sglang_plug.testing import check_attention_backend
from sglang_plug_backends.torch_native.attention import TorchAttention


class Honest(AttentionBackend):
    """A correct backend that computes one sequence after the other; each broken backend below changes one thing."""

    def plan(self, batch: ForwardBatch) -> None:
        batch.plan = list(zip(batch.tables, batch.query_lens, batch.kv_lens, strict=True))

    def run(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        self.store(layer, k, v, batch)
        outputs, end = [], 0
        for table, new, total in self.sequences(batch):
            start, end = end, end + new
            if batch.kv is None:
                keys, values = k[start:end], v[start:end]
            else:
                keys, values = batch.kv.k[layer.index][table[:total]], batch.kv.v[layer.index][table[:total]]
            outputs.append(self.attend(layer, q[start:end], keys, values))
        return torch.cat(outputs)

    def store(self, layer: Attention, k: Tensor, v: Tensor, batch: ForwardBatch) -> None:
        if batch.kv is not None:
            batch.kv.store(layer.index, k, v, batch.slots)

    def sequences(self, batch: ForwardBatch) -> list[Any]:
        actual: list[Any] = batch.plan
        return actual

    def attend(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        group = q.shape[1] // k.shape[1]
        grouped = q.unflatten(1, (k.shape[1], group))
        scores = torch.einsum("nkgd,mkd->kgnm", grouped, k) * self.scale(layer)
        if layer.softcap:
            scores = self.cap(scores, layer.softcap)
        hidden = self.hidden(layer, len(q), len(k))
        scores = self.limited(scores)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return torch.einsum("kgnm,mkd->nkgd", weights, v).flatten(1, 2)

    def scale(self, layer: Attention) -> float:
        return layer.scale

    def cap(self, scores: Tensor, softcap: float) -> Tensor:
        return softcap * torch.tanh(scores / softcap)

    def limited(self, scores: Tensor) -> Tensor:
        return scores

    def hidden(self, layer: Attention, new: int, total: int) -> Tensor:
        distance = self.positions(new, total)[:, None] - torch.arange(total)[None]
        hidden = torch.zeros_like(distance, dtype=torch.bool)
        if layer.causal:
            hidden |= distance < 0
        if layer.window:
            hidden |= distance >= layer.window
        return hidden

    def positions(self, new: int, total: int) -> Tensor:
        return torch.arange(total - new, total)


class UsualScale(Honest):
    def scale(self, layer: Attention) -> float:
        return self.shape.dim**-0.5


class NoWindow(Honest):
    def hidden(self, layer: Attention, new: int, total: int) -> Tensor:
        return torch.arange(total)[None] > self.positions(new, total)[:, None]


class WiderWindow(Honest):
    def hidden(self, layer: Attention, new: int, total: int) -> Tensor:
        distance = self.positions(new, total)[:, None] - torch.arange(total)[None]
        return (distance < 0) | (distance > (layer.window or total))


class SeesNextToken(Honest):
    def positions(self, new: int, total: int) -> Tensor:
        return torch.arange(total - new, total) + 1


class IgnoresContextOffset(Honest):
    def positions(self, new: int, total: int) -> Tensor:
        return torch.arange(new) if new > 1 else torch.tensor([total - 1])


class NoCap(Honest):
    def cap(self, scores: Tensor, softcap: float) -> Tensor:
        return scores


class WrongSlot(Honest):
    """A backend that stores the keys in wrong slots, so that only later steps are wrong."""

    def run(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        output = super().run(layer, q, k, v, batch)
        if batch.kv is not None:
            keys = batch.kv.k[layer.index]
            keys[batch.slots[-1]], keys[0] = 0, k[-1]
        return output


class StrayWrite(Honest):
    def run(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        output = super().run(layer, q, k, v, batch)
        if batch.kv is not None:
            batch.kv.v[layer.index][batch.tables[0, 0]] += 1
        return output


class WrongLayer(Honest):
    def store(self, layer: Attention, k: Tensor, v: Tensor, batch: ForwardBatch) -> None:
        super().store(layer, k, v, batch)
        if batch.kv is not None:
            batch.kv.store(0, k, v, batch.slots)


class KeepsLastPlan(Honest):
    kept: list[Any]

    def plan(self, batch: ForwardBatch) -> None:
        super().plan(batch)
        self.kept = batch.plan

    def sequences(self, batch: ForwardBatch) -> list[Any]:
        return self.kept


class NeverWrites(Honest):
    def run(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        assert batch.kv is not None
        keys, values = list(batch.kv.k), list(batch.kv.v)
        batch.kv.k, batch.kv.v = [part.clone() for part in keys], [part.clone() for part in values]
        output = super().run(layer, q, k, v, batch)
        batch.kv.k, batch.kv.v = keys, values
        return output


class MixesHeads(Honest):
    def attend(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        group = q.shape[1] // k.shape[1]
        order = torch.arange(q.shape[1]).view(group, -1).T.flatten()
        return super().attend(layer, q[:, order], k, v)[:, order.argsort()]


class FullTable(Honest):
    """A backend that also attends to the padding of a block table."""

    def sequences(self, batch: ForwardBatch) -> list[Any]:
        return [(table, new, len(table) if new == 1 else total) for table, new, total in batch.plan]


class ForGraphs(Honest, GraphCapable):
    def static_plan(self, batch: ForwardBatch) -> None:
        self.plan(batch)

    def refresh(self, batch: ForwardBatch) -> None:
        self.plan(batch)


class StaleGraph(ForGraphs):
    def refresh(self, batch: ForwardBatch) -> None:
        pass


class ForStored(Honest, FusedStoreCapable):
    def run_after_store(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        return self.run(layer, q, k, v, batch)


class StoresAgain(ForStored):
    """A backend that stores the step's keys again, doubled."""

    def run_after_store(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        return self.run(layer, q, 2 * k, v, batch)


class WeighsInBaseTwo(TorchAttention):
    """A backend that returns the log-sum-exp in base 2."""

    def run_with_lse(
        self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch
    ) -> tuple[Tensor, Tensor]:
        actual, weights = super().run_with_lse(layer, q, k, v, batch)
        return actual, weights * math.log2(math.e)


class ReadsNarrow(Honest):
    """A backend that converts the pool's dtype, but ignores its scales."""

    def attend(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return super().attend(layer, q, k.to(q.dtype), v.to(q.dtype))


class ReadsScaled(Honest):
    """A backend that reads a scaled pool correctly; each subclass below uses one scale wrongly."""

    def run(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        self.scales = (1.0, 1.0) if batch.kv is None else self.scales_of(batch.kv, layer.index)
        return super().run(layer, q, k, v, batch)

    def scales_of(self, kv: KVPool, layer: int) -> tuple[float, float]:
        return kv.k_scale[layer], kv.v_scale[layer]

    def attend(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k_scale, v_scale = self.scales
        return super().attend(layer, q, k.to(q.dtype) * k_scale, v.to(q.dtype) * v_scale)


class IgnoresKeyScale(ReadsScaled):
    def scales_of(self, kv: KVPool, layer: int) -> tuple[float, float]:
        return 1.0, kv.v_scale[layer]


class IgnoresValueScale(ReadsScaled):
    def scales_of(self, kv: KVPool, layer: int) -> tuple[float, float]:
        return kv.k_scale[layer], 1.0


class OneScaleForBoth(ReadsScaled):
    def scales_of(self, kv: KVPool, layer: int) -> tuple[float, float]:
        return kv.k_scale[layer], kv.k_scale[layer]


class FirstLayersScales(ReadsScaled):
    def scales_of(self, kv: KVPool, layer: int) -> tuple[float, float]:
        return kv.k_scale[0], kv.v_scale[0]


class StoresUnscaled(ReadsScaled):
    def store(self, layer: Attention, k: Tensor, v: Tensor, batch: ForwardBatch) -> None:
        if batch.kv is not None:
            k_scale, v_scale = self.scales
            batch.kv.store(layer.index, k * k_scale, v * v_scale, batch.slots)


class ClampsScores(Honest):
    """A backend that limits scores to keep exp() from overflowing, instead of subtracting the maximum."""

    def limited(self, scores: Tensor) -> Tensor:
        return scores.clamp(-60.0, 60.0)


class Raises(Honest):
    def run(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        raise IndexError("out of range")


class NoOtherValueDim(Honest):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if self.shape.value_dim not in (None, self.shape.dim):
            raise ConfigError("values must be as wide as keys")


class LastOfKeys(Honest):
    """A backend that takes the wrong end of a latent key for the value."""

    def attend(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return super().attend(layer, q, k, k[..., -v.shape[-1] :] if self.shape.values_in_keys else v)


class RefusesGroups(Honest):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if self.shape.heads != self.shape.kv_heads:
            raise ConfigError("no grouped heads")


class WritesQueries(Honest):
    def attend(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        output = super().attend(layer, q, k, v)
        q.mul_(self.scale(layer))
        return output


@pytest.mark.parametrize("backend", ["torch", Honest, NoOtherValueDim, ForGraphs, ForStored])
def test_correct_backends_pass(backend: str | type[AttentionBackend]) -> None:
    check_attention_backend(backend, encoder=True)


def test_a_correct_backend_passes_in_half_precision() -> None:
    check_attention_backend(Honest, dtype=torch.bfloat16)


class LosesAKeyAtTileEnds(Honest):
    def attend(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        skipped = int(len(q) == 1 and len(k) % 128 == 0)
        return super().attend(layer, q, k[skipped:], v[skipped:])


class LosesTheLastRowOfTiles(Honest):
    def attend(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        output = super().attend(layer, q, k, v)
        output[63::64] = 0
        return output


@pytest.mark.planted_bug("attention")
@pytest.mark.parametrize(
    ("backend", "message"),
    [
        (UsualScale, "decode of one sequence.*outputs are wrong"),
        (NoWindow, "window of 8"),
        (WiderWindow, "window of 8"),
        (SeesNextToken, "prefill of one sequence"),
        (IgnoresContextOffset, "prefill in chunks"),
        (NoCap, "capped logits"),
        (WrongSlot, "k of layer 0: slot .* was not written"),
        (StrayWrite, "v of layer 0: slot .* was changed"),
        (WrongLayer, "layers of different windows.*layer 1: pool, k of layer 0"),
        (KeepsLastPlan, "two batches in flight"),
        (NeverWrites, "was not written"),
        (MixesHeads, "decode of one sequence"),
        (FullTable, "ragged decode"),
        (StaleGraph, "static plan, refreshed.*layer 0, refreshed plan"),
        (StoresAgain, "stored before.*outputs are wrong|stored before.*was not written"),
        (WeighsInBaseTwo, "decode, sinks.*outputs are wrong"),
        (ClampsScores, "scores of hundreds.*outputs are wrong"),
        (Raises, "raised IndexError: out of range"),
        (LastOfKeys, "values in keys.*outputs are wrong"),
        (RefusesGroups, "raised ConfigError: no grouped heads"),
        (WritesQueries, "layer 0.*: the input q was written to"),
        (LosesAKeyAtTileEnds, "lengths at the ends of tiles"),
        (LosesTheLastRowOfTiles, "lengths at the ends of tiles"),
    ],
)
def test_broken_backends_fail_and_the_case_is_named(backend: type[AttentionBackend], message: str) -> None:
    with pytest.raises(AssertionError, match=f"{backend.__name__} fails .*{message}"):
        check_attention_backend(backend)


def test_a_pool_of_another_dtype_counts_what_its_scales_say() -> None:
    check_attention_backend(ReadsNarrow)
    with pytest.raises(AssertionError, match="ReadsNarrow fails .*outputs are wrong"):
        check_attention_backend(ReadsNarrow, kv_dtype=torch.float8_e4m3fn)
    with pytest.raises(AssertionError, match="Honest fails .*raised"):
        check_attention_backend(Honest, kv_dtype=torch.float8_e4m3fn)
    check_attention_backend(ReadsScaled, kv_dtype=torch.float8_e4m3fn)


@pytest.mark.planted_bug("attention")
@pytest.mark.parametrize(
    ("backend", "message"),
    [
        (IgnoresKeyScale, "decode of one sequence.*outputs are wrong"),
        (IgnoresValueScale, "decode of one sequence.*outputs are wrong"),
        (OneScaleForBoth, "decode of one sequence.*outputs are wrong"),
        (FirstLayersScales, "layers of different windows.*layer 1: .*outputs are wrong"),
        (StoresUnscaled, "decode of one sequence.*outputs are wrong|was not written"),
    ],
)
def test_a_scale_that_is_ignored_shows(backend: type[AttentionBackend], message: str) -> None:
    check_attention_backend(backend)
    for kv_dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        with pytest.raises(AssertionError, match=f"{backend.__name__} fails .*{message}"):
            check_attention_backend(backend, kv_dtype=kv_dtype)


def test_encoders_are_checked_only_where_claimed() -> None:
    class OnlyDecoders(Honest):
        def hidden(self, layer: Attention, new: int, total: int) -> Tensor:
            assert layer.causal
            return super().hidden(layer, new, total)

    check_attention_backend(OnlyDecoders)
    with pytest.raises(AssertionError, match="encoder"):
        check_attention_backend(OnlyDecoders, encoder=True)


def test_settings_reach_the_backend() -> None:
    recorded = []

    class Curious(Honest):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            recorded.append(self.settings)

    check_attention_backend(Curious, settings="mine")
    assert set(recorded) == {"mine"}
