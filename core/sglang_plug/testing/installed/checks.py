"""The conformance test of each kind of components, and the arguments that a component has to give for it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from sglang_plug.plugins.attribution import make_with_settings
from sglang_plug.plugins.registry import Component, import_target

Check = Callable[..., None]
TESTING = "sglang_plug.testing"
CHECKS: Mapping[str, tuple[str, ...]] = {
    "adapter": ("check_adapter_format",),
    "attention": ("check_attention_backend",),
    "checkpoint": ("check_checkpoint_reader",),
    "command": ("check_command",),
    "deployment": ("check_engine_client",),
    "drafter": ("check_drafter",),
    "eviction": ("check_eviction_policy",),
    "executor": ("check_ranks",),
    "grammar": ("check_grammar_backend",),
    "kernels": ("check_sampling", "check_recurrence", "check_kernel_functions"),
    "kv-store": ("check_kv_store",),
    "logits-processor": ("check_logits_processor",),
    "media-processor": ("check_media_processor",),
    "model": ("check_model",),
    "observer": ("check_observer",),
    "prefix-cache": ("check_prefix_cache",),
    "quantization": ("check_quantization",),
    "reasoning-parser": ("check_output_parser",),
    "route": ("check_route",),
    "routing": ("check_routing_policy",),
    "schedule": ("check_schedule_policy",),
    "step-extension": ("check_step_extension",),
    "store": ("check_store",),
    "tokenizer": ("check_tokenizer",),
    "tool-parser": ("check_output_parser",),
    "weights": ("check_weight_loader",),
}
"""Kind -> its conformance tests in ``sglang_plug.testing``."""


class MissingArgumentsError(ValueError):
    """A component cannot be tested because its ``example`` does not give what its conformance test needs."""


def run_checks(component: Component) -> None:
    """Run the conformance tests of the kind of ``component``, with the arguments of its ``example``.

    Raises ``AssertionError`` if one fails, and ``MissingArgumentsError`` if an argument is missing.
    """
    example = _example(component)
    testing = importlib.import_module(TESTING)
    for name in CHECKS[component.spec.kind]:
        check: Check = getattr(testing, name)
        own = {key: value for key, value in example.items() if key in inspect.signature(check).parameters}
        subject = _subject(component)
        if missing := _missing(check, [*subject, *own]):
            raise MissingArgumentsError(
                f"{name} needs {', '.join(missing)}: give the spec of {component} example='module:function', a "
                "function that returns them as a dictionary"
            )
        check(**subject, **own)
    known = {
        key for name in CHECKS[component.spec.kind] for key in inspect.signature(getattr(testing, name)).parameters
    }
    if unknown := sorted(example.keys() - known):
        raise AssertionError(f"the example of {component} has {unknown[0]!r}; there are: {', '.join(sorted(known))}")


def _example(component: Component) -> dict[str, Any]:
    """Return the arguments that the component's spec names; empty if it names none."""
    if component.spec.example is None:
        return {}
    example = import_target(component.spec.example)()
    assert isinstance(example, dict), (
        f"the example of {component} must return a dictionary, not {type(example).__name__}"
    )
    return example


def _subject(component: Component) -> dict[str, Any]:
    """Return the argument of the conformance test that stands for the component."""
    name = component.spec.name
    match component.spec.kind:
        case "kernels":
            loaded = component.load()
            return {"kernels": make_with_settings(component) if callable(loaded) else loaded}
        case "executor":
            return {"executor": name}
        case "model":
            return {"architecture": name}
        case "step-extension":
            return {}
        case "tool-parser" | "reasoning-parser":
            return {"name_or_class": component.key}
    (check,) = CHECKS[component.spec.kind]
    parameters = inspect.signature(getattr(importlib.import_module(TESTING), check)).parameters
    return {next(iter(parameters)): name}


def _missing(check: Check, passed: list[str]) -> list[str]:
    parameters = inspect.signature(check).parameters.values()
    return [item.name for item in parameters if item.default is item.empty and item.name not in passed]
