"""``plugins check`` finds components that break their contract before they are selected."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from sglang_plug import AttentionBackend
from sglang_plug_api.lifecycle.plugin_check import check_component, settings_of

SOURCE = """
    import dataclasses
    @dataclasses.dataclass
    class Knobs:
        size: int = 3
        names: list[str] = dataclasses.field(default_factory=list)
    @dataclasses.dataclass
    class Strict:
        size: int
    class Good:
        def eviction_priority(self, node): return 0
    class Bad: ...
    class Few:
        def eviction_priority(self): return 0
    here = __name__
    @hookimpl
    def register_cache_policies():
        yield EvictionSpec(name="good", target=f"{here}:Good", settings=f"{here}:Knobs")
        yield EvictionSpec(name="strict", target=f"{here}:Good", settings=f"{here}:Strict")
        yield EvictionSpec(name="no-rank", target=f"{here}:Bad")
        yield EvictionSpec(name="few", target=f"{here}:Few")
        yield EvictionSpec(name="lost", target=f"{here}:Missing")
        yield EvictionSpec(name="no-dataclass", target=f"{here}:Good", settings=f"{here}:Good")
        yield EvictionSpec(name="no-settings", target=f"{here}:Good", settings=f"{here}:Missing")
        yield PrefixCacheSpec(name="no-cache", target=f"{here}:Good")
    @hookimpl
    def register_schedule_policies():
        return [ScheduleSpec(name="no-order", target=f"{here}:Good")]
    @hookimpl
    def register_kernels():
        return [KernelSpec(name="no-kernels", target=f"{here}:Good")]
    @hookimpl
    def register_attention_backends():
        from sglang_plug import AttentionSpec
        yield AttentionSpec(name="unfinished", target=f"{here}_attention:Unfinished")
        yield AttentionSpec(name="few", target=f"{here}_attention:Few")
        yield AttentionSpec(name="no-graphs", target=f"{here}_attention:Plain", graphs=True)
    @hookimpl
    def register_grammar_backends():
        return [GrammarSpec(name="no-grammar", target=f"{here}:Good")]
    @hookimpl
    def register_routes():
        return [RouteSpec(name="not-callable", target=f"{here}:__name__")]
"""


def attention_backends() -> ModuleType:
    class Unfinished(AttentionBackend):
        pass

    class Plain(AttentionBackend):
        def plan(self, batch: Any) -> None: ...
        def run(self, *arguments: Any) -> Any: ...

    class Few(Plain):
        def run(self, q: Any) -> Any: ...

    module: Any = ModuleType("attention")
    module.Unfinished, module.Plain, module.Few = Unfinished, Plain, Few
    return module


@pytest.mark.parametrize(
    ("kind", "name", "problem"),
    [
        ("eviction", "no-rank", "has no method 'eviction_priority'"),
        ("eviction", "lost", "could not be imported"),
        ("eviction", "few", "eviction_priority() of '{module}:Few' cannot be called with (node)"),
        ("attention", "few", "run() of '{module}_attention:Few' cannot be called with (layer, q, k, v"),
        ("eviction", "no-dataclass", "must be a dataclass"),
        ("eviction", "no-settings", "AttributeError"),
        ("prefix-cache", "no-cache", "must be a subclass of PrefixCache"),
        ("schedule", "no-order", "has no method 'order'"),
        ("kernels", "no-kernels", "is not a Kernels, but Good"),
        ("grammar", "no-grammar", "must be a subclass of GrammarBackend"),
        ("attention", "unfinished", "does not define plan, run"),
        ("attention", "no-graphs", "says graphs=True, but"),
        ("route", "not-callable", "cannot be called"),
    ],
)
def test_each_broken_contract_is_one_problem(
    kind: str, name: str, problem: str, discover: Any, plugin_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    component = discover(plugin_file("sample", SOURCE)).get(kind, name)
    monkeypatch.setitem(sys.modules, f"{component.plugin.module}_attention", attention_backends())
    problems = check_component(component)
    assert len(problems) == 1
    assert problem.replace("{module}", component.plugin.module) in problems[0]
    assert "plugin 'sample'" in problems[0]


@pytest.mark.parametrize("name", ["good", "strict"])
def test_a_kept_contract_is_no_problem(name: str, discover: Any, plugin_file: Any) -> None:
    assert check_component(discover(plugin_file("sample", SOURCE)).get("eviction", name)) == []


def test_given_settings_are_checked(discover: Any, plugin_file: Any) -> None:
    plugins = discover(plugin_file("sample", SOURCE), settings={"good": {"size": "many"}})
    problems = check_component(plugins.get("eviction", "good"))
    assert len(problems) == 1
    assert "'good'" in problems[0]


KERNELS = """
from dataclasses import dataclass
@dataclass(frozen=True)
class Width:
    width: int{default}
def build(settings):
    from sglang_plug import Kernels
    return Kernels(name="wide") if settings.width == 8 else settings.width
@hookimpl
def register_kernels():
    return [KernelSpec(name="wide", target=f"{{__name__}}:build", settings=f"{{__name__}}:Width")]
"""


@pytest.mark.parametrize(
    ("default", "values", "problem"),
    [
        (" = 8", {}, ""),
        (" = 8", {"width": 9}, "is not a Kernels, but int"),
        (" = 8", {"width": "x"}, "width"),
        ("", {"width": 8}, ""),
        ("", {}, ""),
    ],
)
def test_kernel_sets_are_made_with_their_settings(
    default: str, values: dict[str, Any], problem: str, discover: Any, plugin_file: Any
) -> None:
    plugins = discover(plugin_file("sample", KERNELS.format(default=default)), settings={"wide": values})
    problems = check_component(plugins.get("kernels", "wide"))
    assert len(problems) == (1 if problem else 0) and problem in "".join(problems)


def test_settings_are_listed_with_type_and_default(discover: Any, plugin_file: Any) -> None:
    plugins = discover(plugin_file("sample", SOURCE))
    assert settings_of(plugins.get("eviction", "good")) == [("size", "int", "3"), ("names", "list[str]", "[]")]
    assert settings_of(plugins.get("eviction", "strict")) == [("size", "int", "")]
    assert settings_of(plugins.get("eviction", "lru")) == []


EXTENSION = """
from sglang_plug import AdmissionPhase, ExecutionPhase, ModelPhase, OutputPhase, PreemptionPhase, RankPhase
from sglang_plug import StepExtension
{body}
def build(context):
    return Extension()
@hookimpl
def register_step_extensions():
    return [StepExtensionSpec(name="counts", target=f"{{__name__}}:build")]
"""


@pytest.mark.parametrize(
    ("bases", "method", "problem"),
    [
        ("OutputPhase", "def output(self, sequence): return None", "output() cannot be called with (sequence, output)"),
        (
            "PreemptionPhase",
            "def preempt(self, running, waiting): return [], []",
            "preempt() cannot be called with (running, waiting, *, within_callers)",
        ),
        (
            "OutputPhase",
            "def outputs(self, sequence, output): return output",
            "outputs() is never called: OutputPhase has no such method; did you mean output(sequence, output)?",
        ),
        (
            "AdmissionPhase",
            "def output(self, sequence, output): return output",
            " has output and does not inherit from OutputPhase, so the engine never calls them; add OutputPhase to its "
            "base classes",
        ),
        ("RankPhase, ExecutionPhase", "pass", " has both RankPhase and ExecutionPhase"),
        ("ModelPhase", "def context(self, chunks, batch): pass", " has context() and no graph_input()"),
    ],
)
def test_methods_that_the_engine_cannot_call_are_named(
    bases: str, method: str, problem: str, discover: Any, plugin_file: Any
) -> None:
    source = EXTENSION.format(body=f"class Extension(StepExtension, {bases}):\n    {method}")
    problems = check_component(discover(plugin_file("sample", source)).get("step-extension", "counts"))
    separator = "" if problem.startswith(" ") else "."
    assert len(problems) == 1 and f"Extension{separator}{problem}" in problems[0]
    assert problems[0].startswith("step-extension 'counts' from")


@pytest.mark.parametrize(
    "body",
    [
        "class Extension(StepExtension, OutputPhase):\n    def output(self, *arguments): return arguments[1]",
        "class Extension(StepExtension, OutputPhase):\n    def recorded(self, tokens): return 0",
        "class Base(StepExtension):\n    def output(self, sequence, output): return output\n"
        "class Extension(Base, OutputPhase): pass",
    ],
    ids=["any parameters", "a method of its own", "a base class without the phase"],
)
def test_an_extension_with_the_right_methods_is_no_problem(body: str, discover: Any, plugin_file: Any) -> None:
    component = discover(plugin_file("sample", EXTENSION.format(body=body))).get("step-extension", "counts")
    assert check_component(component) == []
