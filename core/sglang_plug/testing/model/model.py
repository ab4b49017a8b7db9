"""Conformance test of models: a comparison with transformers' model of the same architecture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from sglang_plug.contracts.model.attention import AttentionBackend, FusedStoreCapable
from sglang_plug.contracts.model.batch import KVPool
from sglang_plug.contracts.model.kernels import TORCH, Kernels, rope_store
from sglang_plug.contracts.model.model import BuildEnv, Model
from sglang_plug.contracts.model.quantization import Quantization, QuantizationRequest
from sglang_plug.contracts.model.recurrent_state import RecurrentInputs, SequenceSpans, StatePool, StateShape
from sglang_plug.plugins.attribution import make_with_settings
from sglang_plug.plugins.registry import Plugins

from .attention_inputs import ShuffledSlots, make_batch
from .missing_weights import check_missing_weight

LONGEST = 48
LONG = 600
"""Tokens of a long prompt, unless the model's context is shorter."""
CHUNKS = (11, 1, 20, 16)
PROMPTS = (17, 1, 30, 8)
DECODE_STEPS = 4
CPU = torch.device("cpu")
INPUTS = ("input_ids", "positions", "slots", "tables")
"""Tensors of a batch that a model must not write to."""


@torch.inference_mode()
def check_model(
    architecture: str,
    config: Any,
    *,
    model_class: type[Model] | None = None,
    attention: str | type[AttentionBackend] = "torch",
    kernels: Kernels | str | None = None,
    quantization: str | None = None,
    tolerance: float = 1e-4,
    reference: nn.Module | None = None,
) -> None:
    """Compare logits with transformers on the host, in float32: one prompt, chunks, a ragged batch, decoding.

    Weights are loaded in two orders, and checkpoints that lack one have to be refused.

    With a ``FusedStoreCapable`` backend, decoding is also tested with rotation and storing in one kernel.

    Args:
        architecture: class name in transformers, and the name under which a plugin declares the model.
        config: transformers' configuration; small widths are enough. Weights are random.
        model_class: the model's class, if no installed plugin declares it.
        attention: name or class of the attention backend.
        kernels: a kernel set or its name; ``None``: the torch reference.
        quantization: name of a quantization that converts the weights when they are loaded; needs a wider
            ``tolerance``.
        tolerance: greatest difference allowed, relative to the greatest logit.
        reference: a model to compare with instead of transformers' class ``architecture``. Called with ``input_ids``
            ``[1, tokens]``, it returns an object whose ``logits`` are ``[1, tokens, vocabulary]``. Its ``state_dict``
            has the checkpoint's names, and is filled with random numbers here.

    Raises:
        AssertionError: names the first case that fails, and how.
        PluginError: no plugin, or more than one, declares one of the names.
        WeightError: the weights of transformers' model do not fit the model.
    """
    ours = model_class or Plugins.discover().get("model", architecture).load_class(Model)
    reference = _with_random_weights(_transformers_model(architecture, config) if reference is None else reference)
    backend, kernel_set = _attention_class(attention), _kernels(kernels)
    weights = list(reference.state_dict().items())
    for kernels, case_name in _kernel_variants(kernel_set, backend):
        bench = _bench(ours, config, backend, kernels, _quantization(quantization))
        bench.model.load_weights(weights)
        bench.model.eval().prepare()
        text_config = ours.text_config(config)
        for name, prompts, steps in _cases(text_config.vocab_size, _context_length(text_config)):
            if case_name not in (ANY, name):
                continue
            where = f"{ours.__name__} fails {name!r}" + (" (rotation and storing in one)" if case_name != ANY else "")
            _check_case(bench, reference, prompts, steps, tolerance, where)
    if quantization is None:

        def make() -> Bench:
            return _bench(ours, config, backend, kernel_set, None)

        check_missing_weight(lambda: make().model, weights)
        bench, where = make(), f"{ours.__name__} fails 'weights in reverse order'"
        bench.model.load_weights(reversed(weights))
        bench.model.eval().prepare()
        _, prompts, steps = next(_cases(text_config.vocab_size, _context_length(text_config)))
        _check_case(bench, reference, prompts, steps, tolerance, where)


def _check_case(
    bench: Bench, reference: nn.Module, prompts: Sequence[Tensor], steps: Steps, tolerance: float, where: str
) -> None:
    expected = [reference(input_ids=prompt[None]).logits[0] for prompt in prompts]
    try:
        logits = bench.logits(prompts, steps)
    except Exception as error:
        raise AssertionError(f"{where}: raised {type(error).__name__}: {error}") from error
    for row, (mine, theirs) in enumerate(zip(logits, expected, strict=True)):
        _compare(mine, theirs, tolerance, f"{where}: sequence {row}")


ANY, DECODING = "", "prompts in one batch, then decoding"
"""Names of cases: ``ANY`` stands for all of them."""


def _kernel_variants(kernels: Kernels, backend: type[AttentionBackend]) -> Iterator[tuple[Kernels, str]]:
    """Yield kernel sets and the case to run with them: rotation and storing are tested fused and separate."""
    yield kernels, ANY
    if issubclass(backend, FusedStoreCapable):
        yield replace(kernels, rope_store=rope_store if kernels.rope_store is None else None), DECODING


Steps = list[list[int]]
"""Number of new tokens of each sequence in each step; 0 leaves the sequence out."""


def _context_length(config: Any) -> int:
    """Return the longest prompt that the configuration allows; a long one where it does not say."""
    lengths = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions", "max_seq_len")]
    return min((length for length in lengths if isinstance(length, int)), default=LONG)


def _cases(vocabulary: int, context: int) -> Iterator[tuple[str, list[Tensor], Steps]]:
    generator = torch.Generator().manual_seed(5)

    def prompts(*lengths: int) -> list[Tensor]:
        return [torch.randint(vocabulary, (length,), generator=generator) for length in lengths]

    yield "one prompt", prompts(LONGEST), [[LONGEST]]
    yield "one prompt in chunks", prompts(LONGEST), [[chunk] for chunk in CHUNKS]
    yield "token by token", prompts(6), [[1]] * 6
    yield "prompts of different lengths in one batch", prompts(*PROMPTS), [list(PROMPTS)]
    longer = prompts(*(length + DECODE_STEPS for length in PROMPTS))
    yield DECODING, longer, [list(PROMPTS), *[[1] * len(PROMPTS)] * DECODE_STEPS]
    yield "a prompt joins while others decode", prompts(9, 21, 14), [[8, 20, 0], [1, 0, 5], [0, 1, 9]]
    if (longest := min(context, LONG)) > LONGEST:
        yield "a long prompt in chunks", prompts(longest), [[longest // 2 - 3], [longest - longest // 2 + 3]]


@dataclass(frozen=True, slots=True)
class Bench:
    """A model with the parts of the engine that it needs."""

    model: Model
    backend: AttentionBackend
    states: Sequence[StateShape]
    """The states that the model keeps of each sequence."""

    def logits(self, prompts: Sequence[Tensor], steps: Steps) -> list[Tensor]:
        """Return ``[tokens, vocabulary]`` of each prompt, computed in ``steps``, in slots of random order."""
        slots = ShuffledSlots(sum(map(len, prompts)), len(prompts), 1, torch.Generator().manual_seed(3))
        pool, states = self._pool(slots.rows), self._states(len(prompts))
        contexts: list[list[int]] = [[] for _ in prompts]
        pieces: list[list[Tensor]] = [[] for _ in prompts]
        for counts in steps:
            active = [row for row, count in enumerate(counts) if count]
            starts = [len(contexts[row]) for row in active]
            for row, start in zip(active, starts, strict=True):
                slots.extend(contexts[row], start + counts[row])
            new = [prompts[row][start : start + counts[row]] for row, start in zip(active, starts, strict=True)]
            recurrent = None if states is None else (states, [StatePool.RESERVED + row for row in active])
            logits = self._step([contexts[row] for row in active], new, pool, recurrent)
            for row, piece in zip(active, logits, strict=True):
                pieces[row].append(piece)
        return [torch.cat(piece) for piece in pieces]

    def _step(
        self,
        contexts: Sequence[Sequence[int]],
        new: Sequence[Tensor],
        pool: KVPool,
        recurrent: tuple[StatePool, list[int]] | None,
    ) -> list[Tensor]:
        lengths = [len(tokens) for tokens in new]
        batch = make_batch(contexts, lengths, tokens=torch.cat(list(new)), kv=pool, device=CPU)
        if recurrent is not None:
            states, rows = recurrent
            batch.recurrent = RecurrentInputs(states, SequenceSpans.of(rows, lengths, CPU))
        inputs: dict[str, Tensor] = {name: getattr(batch, name) for name in INPUTS}
        before = {name: tensor.clone() for name, tensor in inputs.items()}
        self.backend.plan(batch)
        logits = self.model.head(self.model(batch))
        for name, tensor in inputs.items():
            if not torch.equal(tensor, before[name]):
                raise ValueError(f"the model wrote to the batch's {name}, which others read after it")
        ends = [0, *accumulate(lengths)]
        return [logits[start:end] for start, end in pairwise(ends)]

    def _pool(self, rows: int) -> KVPool:
        return KVPool.of(self.backend.shape, slots=rows, dtype=torch.float32, device=CPU)

    def _states(self, sequences: int) -> StatePool | None:
        if not self.states:
            return None
        return StatePool(self.states, rows=StatePool.RESERVED + sequences, dtype=torch.float32, device=CPU)


def _bench(
    model_class: type[Model],
    config: Any,
    attention: type[AttentionBackend],
    kernels: Kernels,
    quantization: Quantization | None,
) -> Bench:
    backend = attention(model_class.attention_shape(config), CPU)
    model = model_class(config, BuildEnv(attention=backend, kernels=kernels, quantization=quantization))
    model.quantize()
    return Bench(model, backend, model_class.state_shapes(config))


def _transformers_model(architecture: str, config: Any) -> nn.Module:
    import transformers

    model_class = getattr(transformers, architecture, None)
    assert model_class is not None, f"transformers has no {architecture}; give check_model a reference to compare with"
    model: nn.Module = model_class(config)
    return model


def _with_random_weights(model: nn.Module) -> nn.Module:
    """Fill the model with weights wide enough that every part of it affects the logits, and return it."""
    model = model.float().eval()
    generator = torch.Generator().manual_seed(2)
    every = dict(model.named_parameters(remove_duplicate=False))
    buffers = [(name, tensor) for name, tensor in model.state_dict().items() if name not in every]
    for name, parameter in (*model.named_parameters(), *buffers):
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim > 1:
            parameter.copy_(noise * parameter.shape[-1] ** -0.5)
        else:
            parameter.copy_(noise * 0.2 + (0.0 if name.endswith("bias") else 1.0))
    return model


def _attention_class(attention: str | type[AttentionBackend]) -> type[AttentionBackend]:
    if not isinstance(attention, str):
        return attention
    backend: type[AttentionBackend] = Plugins.discover().get("attention", attention).load(AttentionBackend)
    return backend


def _kernels(kernels: Kernels | str | None) -> Kernels:
    if kernels is None:
        return TORCH
    if isinstance(kernels, Kernels):
        return kernels
    component = Plugins.discover().get("kernels", kernels)
    loaded = component.load()
    kernel_set: Kernels = loaded if isinstance(loaded, Kernels) else make_with_settings(component, contract=Kernels)
    return kernel_set


def _quantization(name: str | None) -> Quantization | None:
    if name is None:
        return None
    component = Plugins.discover().get("quantization", name)
    request = QuantizationRequest(device=CPU, dtype=torch.float32)
    quantization: Quantization = component.load()(request, component.settings())
    return quantization


def _compare(logits: Tensor, expected: Tensor, tolerance: float, where: str) -> None:
    assert logits.shape == expected.shape, f"{where}: logits are {list(logits.shape)}, not {list(expected.shape)}"
    error = (logits.float() - expected).abs().amax(-1) / expected.abs().max()
    wrong = ~(error <= tolerance)  # NaN is wrong too
    if wrong.any():
        token = int(wrong.nonzero()[0])
        raise AssertionError(
            f"{where}: {int(wrong.sum())} of {len(wrong)} tokens are wrong, first token {token} "
            f"by {error[token].item():.2g} of the greatest logit (allowed: {tolerance:.2g})"
        )
