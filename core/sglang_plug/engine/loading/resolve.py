"""Resolves every ``auto`` of a configuration to a value, once, and keeps the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from typing import Any, get_args

import torch

from sglang_plug.config import AUTO, NO_QUANTIZATION, ConfigError, EngineConfig, ScheduleOptions
from sglang_plug.contracts.model.attention import AttentionShape
from sglang_plug.contracts.model.checkpoint import Checkpoint
from sglang_plug.contracts.model.model import Model
from sglang_plug.contracts.model.pooling import Pooling
from sglang_plug.contracts.model.quantization import stored_quantization
from sglang_plug.contracts.model.recurrent_state import StateShape
from sglang_plug.contracts.request import Task
from sglang_plug.plugins.attribution import attributed, check_contract, declaration_problem, make_with_settings
from sglang_plug.plugins.hookspecs import Facts
from sglang_plug.plugins.registry import Component, Plugins
from sglang_plug.plugins.specs import AttentionSpec, ExecutorSpec, KernelSpec, ModelSpec, QuantizationSpec

from .checkpoint_formats import Choice, open_checkpoint, tokenizer_source
from .device import choose_device, choose_dtype, describe_device
from .kv_dtype import fit_kv_dtype, kv_dtype

NATIVE = "native"
DEFAULT_CONTEXT = 4096
DEFAULT_CHUNK = {"cpu": 2048}
DEFAULT_RUNNING = {"cpu": 128}
ACCELERATOR_CHUNK, ACCELERATOR_RUNNING = 8192, 256
LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
"""Names that configurations have for the longest context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A configuration without any ``auto``, and the components that it names."""

    config: EngineConfig
    checkpoint: Checkpoint
    facts: Facts
    """The facts about device, dtype and model that plugins receive."""
    device: torch.device
    dtype: torch.dtype
    model_class: type[Model]
    shape: AttentionShape
    states: tuple[StateShape, ...]
    """The shapes of the states that the model keeps per sequence besides keys and values."""
    context_length: int
    tasks: tuple[Task, ...]
    """The tasks that requests may name."""
    pooling: Pooling
    never_chunks_prompts: bool
    """True if prompts are neither split into chunks nor taken from the prefix cache."""
    causal: bool
    """False for encoders, which have no KV pool."""
    chunk_size: int
    max_running: int
    choices: Mapping[str, Choice] = field(default_factory=dict)

    @property
    def kv_dtype(self) -> torch.dtype:
        """The dtype of keys and values in the KV pool."""
        return self.shape.kv_dtype or self.dtype

    @property
    def inputs(self) -> frozenset[str]:
        """The kinds of inputs that prompts may have."""
        return self.choices["model"].component.spec_as(ModelSpec).inputs

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        size: int = self.model_class.text_config(self.checkpoint.config).vocab_size
        return size

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end an output, as the checkpoint says."""
        config, own = self.checkpoint.config, self.model_class.text_config(self.checkpoint.config)
        stated = getattr(config, "eos_token_id", None)
        stated = getattr(own, "eos_token_id", None) if stated is None else stated
        eos = self.checkpoint.generation.get("eos_token_id", stated)
        return () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)

    @property
    def components(self) -> tuple[Component, ...]:
        """All chosen components."""
        return tuple(choice.component for choice in self.choices.values())

    def make(self, kind: str, contract: type | None = None) -> Any:
        """Construct the chosen component of ``kind``, which takes only its settings."""
        return make_with_settings(self.choices[kind].component, contract=contract)


def resolve(config: EngineConfig, plugins: Plugins) -> Resolved:
    """Make every choice that the engine needs, once.

    Raises ``ConfigError`` (or ``PluginError``) if a named component is unknown or does not fit.
    """
    choices: dict[str, Choice] = {}
    device = choose_device(config.model.device, config.parallel.replica * config.parallel.tp_size)
    facts = Facts(device=device.type, platform=describe_device(device))

    choose = partial(_choose, plugins, choices)
    checkpoint, choices["checkpoint"], choices["weights"] = open_checkpoint(config, plugins, facts)
    choices["model"] = choose_model(config.model.impl, checkpoint, plugins, facts)
    model = choices["model"].component
    causal = model.spec_as(ModelSpec).causal
    model_class: type[Model] = model.load_class(Model)
    dtype = choose_dtype(config.model.dtype, checkpoint.config, model_class.text_config(checkpoint.config), device)
    shape = _shape(model, model_class, checkpoint, plugins, kv_dtype(config.cache.kv_dtype, dtype, checkpoint.kv_dtype))
    shape = _of_rank(shape, model, config.parallel.tp_size)
    facts = replace(
        facts,
        source=checkpoint.source,
        dtype=str(dtype).removeprefix("torch."),
        model=checkpoint.config,
        shape=shape,
        subjects={"tokenizer": tokenizer_source(config, checkpoint)},
    )
    _check_device(choose("attention", config.backends.attention, facts), AttentionSpec, device)
    _check_device(choose("kernels", config.backends.kernels, facts), KernelSpec, device)
    if config.parallel.tp_size > 1:
        _check_device(choose("executor", config.parallel.executor, facts), ExecutorSpec, device)
    elif config.parallel.executor != AUTO:
        plugins.get("executor", config.parallel.executor)  # report a typo although no executor is needed
    shape = fit_kv_dtype(shape, choices["attention"].component, config.cache.kv_dtype, plugins, device.type)
    _choose_quantization(config, plugins, facts, choices)
    tasks = _tasks(config.model.task, model)
    pooling = checkpoint.pooling or model_class.default_pooling
    never_chunks_prompts = not causal or ("generate" not in tasks and model_class.pools_whole_prompts(pooling))
    choose("prefix-cache", "none" if never_chunks_prompts else config.cache.prefix_cache, facts)
    choose("eviction", config.cache.eviction_policy, facts)
    choose("schedule", config.schedule.policy, facts)
    states = _state_shapes(model, model_class, checkpoint)
    context_length = _context_length(config.model.context_length, model_class, checkpoint.config)
    return Resolved(
        config=config,
        checkpoint=checkpoint,
        facts=facts,
        device=device,
        dtype=dtype,
        model_class=model_class,
        shape=shape,
        states=states,
        context_length=context_length,
        tasks=tasks,
        pooling=pooling,
        never_chunks_prompts=never_chunks_prompts,
        causal=causal,
        chunk_size=_chunk_size(config.schedule, device, context_length),
        max_running=_max_running(config.schedule, device),
        choices=_checked(choices),
    )


def _checked(choices: dict[str, Choice]) -> dict[str, Choice]:
    """Return ``choices``. Raises ``ConfigError`` if a component cannot be imported or its settings do not fit."""
    for choice in choices.values():
        choice.component.check()
    return choices


def _choose(plugins: Plugins, choices: dict[str, Choice], kind: str, name: str, facts: Facts) -> Component:
    """Resolve the component of ``kind`` by name, or at ``auto`` by the plugins' choice; add it to ``choices``."""
    component = plugins.resolve(kind, name, facts)
    reason = f"chosen for {facts.device}" if name == AUTO else "named by the configuration"
    choices[kind] = Choice(component, reason)
    return component


def _choose_quantization(config: EngineConfig, plugins: Plugins, facts: Facts, choices: dict[str, Choice]) -> None:
    """Choose the quantization, if any: the named one, or the plugins' choice for the checkpoint."""
    name, stored = config.backends.quantization, stored_quantization(facts.model)
    method = stored and stored.get("quant_method")
    if name == NO_QUANTIZATION and stored:
        raise ConfigError(f"--quantization none: the checkpoint's weights are quantized ({method}); leave it at auto")
    chosen = plugins.choose("quantization", facts) if name == AUTO else name
    if chosen is None or chosen == NO_QUANTIZATION:
        if stored:
            known = ", ".join(plugins.names("quantization"))
            raise ConfigError(
                f"the checkpoint's weights are quantized with the method {method!r}, which no installed plugin reads "
                f"(installed: {known}); install a plugin for it, or serve a checkpoint that is not quantized"
            )
        return
    why = "named by the configuration" if name != AUTO else "chosen for the checkpoint"
    choices["quantization"] = Choice(plugins.get("quantization", chosen), why)
    _check_device(choices["quantization"].component, QuantizationSpec, torch.device(facts.device))


def _tasks(requested: str, model: Component) -> tuple[Task, ...]:
    """Return the tasks to serve: a model that generates does only that, unless a pooling task is requested."""
    spec = model.spec_as(ModelSpec)
    if requested == AUTO:
        return ("generate",) if "generate" in spec.tasks else tuple(sorted(spec.tasks))
    known = get_args(Task)
    if requested not in known:
        raise ConfigError(f"--task {requested!r} is unknown; known: auto, {', '.join(known)}")
    task: Task = requested  # type: ignore[assignment]
    own = spec.tasks - {"generate"}
    # any model has hidden states to embed, and --is-embedding may mean scores
    if task != "embed" and task not in spec.tasks:
        possible = sorted(spec.tasks | ({"embed"} if not own else set()))
        raise ConfigError(f"--task {task}: {model} does not support it; its tasks: {', '.join(possible)}")
    if task == "generate" or not own:
        return (task,)
    return tuple(sorted(own))


def choose_model(impl: str, checkpoint: Checkpoint, plugins: Plugins, facts: Facts) -> Choice:
    """Choose the model class that serves ``checkpoint``, by ``--model-impl``.

    Raises ``ConfigError`` naming similar architectures if there is none.
    """
    architecture = checkpoint.architecture
    native, generic = _models(plugins)
    if impl not in (AUTO, NATIVE):
        if impl not in generic:
            raise ConfigError(f"--model-impl {impl!r} is unknown; known: {', '.join((AUTO, NATIVE, *generic))}")
        return Choice(plugins.get("model", impl), "named by the configuration")
    if architecture in native:
        return Choice(plugins.get("model", architecture), "named by the checkpoint")
    chosen = plugins.choose("model", replace(facts, model=checkpoint.config)) if impl == AUTO else None
    if chosen is not None:
        return Choice(plugins.get("model", chosen), f"no plugin declares {architecture}")
    flag = f"; --model-impl {' or '.join(generic)} may serve it without a plugin of its own" if generic else ""
    failures = "".join(f"\n  {failure}" for failure in plugins.failures)
    raise ConfigError(f"no model named {architecture!r}; {_nearest(architecture, plugins)}{flag}{failures}")


def _shape(
    model: Component, model_class: type[Model], checkpoint: Checkpoint, plugins: Plugins, stored: torch.dtype | None
) -> AttentionShape:
    """Return the model's attention shape with the KV dtype ``stored``.

    Raises ``ConfigError``; for a generic model it names similar architectures, because the name may be mistyped.
    """
    spec = model.spec_as(ModelSpec)
    if (problem := declaration_problem(model, model_class)) is not None:
        raise ConfigError(problem)
    try:
        with attributed(model, "to compute the shape of its attention"):
            shape = model_class.attention_shape(checkpoint.config)
        check_contract(model, shape, AttentionShape)
        return replace(shape, kv_dtype=stored) if spec.causal and stored is not None else shape
    except ConfigError as error:
        near = f"; {_nearest(checkpoint.architecture, plugins)}" if spec.generic else ""
        raise ConfigError(f"{error}{near}") from error


def _state_shapes(model: Component, model_class: type[Model], checkpoint: Checkpoint) -> tuple[StateShape, ...]:
    """Return the shapes of the states that the model keeps per sequence; none for most models."""
    with attributed(model, "to compute the shapes of its recurrent states"):
        shapes = tuple(model_class.state_shapes(checkpoint.config))
    for shape in shapes:
        check_contract(model, shape, StateShape)
    return shapes


def _context_length(configured: int | None, model_class: type[Model], config: Any) -> int:
    """Return the number of tokens of the longest sequence.

    Raises ``ConfigError`` if ``configured`` is more than the model has positions for.
    """
    text = model_class.text_config(config)
    stated = next((value for name in LENGTHS if (value := getattr(text, name, None))), DEFAULT_CONTEXT)
    own = model_class.context_length(config) or stated
    if configured is not None and configured > own:
        raise ConfigError(
            f"--context-length {configured} is longer than the model's {own} tokens; if the model can do it, "
            f"say so with --json-model-override-args '{{\"max_position_embeddings\": {configured}}}'"
        )
    return int(own if configured is None else configured)


def _chunk_size(options: ScheduleOptions, device: torch.device, longest: int) -> int:
    """Return the largest number of new tokens in one step; a setting below 0 means ``longest``."""
    size = options.chunked_prefill_size or DEFAULT_CHUNK.get(device.type, ACCELERATOR_CHUNK)
    return size if size > 0 else longest


def _max_running(options: ScheduleOptions, device: torch.device) -> int:
    """Return the largest number of sequences in one step."""
    return options.max_running_requests or DEFAULT_RUNNING.get(device.type, ACCELERATOR_RUNNING)


def _of_rank(shape: AttentionShape, model: Component, size: int) -> AttentionShape:
    """Return one rank's part of the model's heads. Raises ``ConfigError`` if ranks cannot share the model."""
    if size < 1:
        raise ConfigError(f"--tp-size must be at least 1, got {size}")
    if size == 1:
        return shape
    if not model.spec_as(ModelSpec).parallel:
        raise ConfigError(f"--tp-size {size}: several ranks cannot share {model}; leave it out, or at 1")
    return shape.of_rank(size)


def _models(plugins: Plugins) -> tuple[list[str], list[str]]:
    """Return the names of models for one architecture each, and of generic models."""
    specs = [component.spec for component in plugins.all("model") if isinstance(component.spec, ModelSpec)]
    native, generic = ({spec.name for spec in specs if spec.generic is is_generic} for is_generic in (False, True))
    return sorted(native), sorted(generic)


def _nearest(architecture: str, plugins: Plugins) -> str:
    """Return a clause for an error message with the most similar architectures that have plugins."""
    native, _ = _models(plugins)
    near = get_close_matches(architecture, native, 3, 0.4) or native
    return f"the nearest architectures with a plugin are {', '.join(near)}" if near else "no plugin declares a model"


def _check_device(
    component: Component,
    spec_class: type[AttentionSpec | ExecutorSpec | KernelSpec | QuantizationSpec],
    device: torch.device,
) -> None:
    spec = component.spec_as(spec_class)
    if not {"any", device.type} & spec.devices:
        raise ConfigError(
            f"{component} does not run on {device.type}, only on {', '.join(sorted(spec.devices))}; choose another "
            f"{spec.kind}, or another --device"
        )
