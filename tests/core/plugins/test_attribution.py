"""Errors of components carry the names of the component and its plugin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_plug import (
    AttentionShape,
    CheckpointNotFoundError,
    ConfigError,
    Model,
    ModelSpec,
    PluginError,
    Plugins,
    SupportsImages,
    Tokenizer,
)
from sglang_plug.contracts.serving.cache import EvictionPolicy
from sglang_plug.plugins.attribution import (
    attributed,
    declaration_problem,
    described,
    make,
    make_with_settings,
    signature_problems,
)
from sglang_plug.plugins.registry import Component

Install = Callable[..., Path]
SOURCE = """
@hookimpl
def register_cache_policies():
    yield EvictionSpec(name="mine", target="sglang_whose_target:TARGET", SETTINGS)

from dataclasses import dataclass

@dataclass
class Settings:
    size: int = 3
"""
TARGET = """
from sglang_plug import ConfigError
from sglang_plug_backends.eviction.policies import LeastRecentlyUsed as LRU

class Good:
    def __init__(self, settings=None): self.settings = settings
    def eviction_priority(self, node): return self.made(node)
    def made(self, node): return LRU().eviction_priority(node)

class NoRank: pass

class WrongRank:
    def eviction_priority(self): return 0

def broken(): raise OSError("out of paper")
def leaves(): raise SystemExit(3)
def refuses(): raise ConfigError("not on Sundays")
"""
WHOSE = r"eviction 'mine' from sglang-whose 1.0 \(plugin 'sglang-whose'\)"


@pytest.fixture
def component(install: Install) -> Callable[..., Component]:
    def build(target: str, settings: str = "") -> Component:
        source = SOURCE.replace("TARGET", target).replace("SETTINGS", settings)
        install("sglang-whose", source, files={"sglang_whose_target": TARGET})
        return Plugins.discover().get("eviction", "mine")

    return build


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("broken", "failed to start: OSError: out of paper"),
        ("leaves", "failed to start: SystemExit: 3"),
        ("NoRank", ".*returned NoRank, which lacks these members of EvictionPolicy: eviction_priority"),
        (
            "WrongRank",
            r".*returned WrongRank, whose eviction_priority\(\) cannot be called with \(node\): too many positional",
        ),
    ],
)
def test_what_goes_wrong_names_the_component(component: Any, target: str, message: str) -> None:
    with pytest.raises(PluginError, match=f"{WHOSE}:? ?{message}"):
        make(component(target), contract=EvictionPolicy)


def test_a_refusal_is_kept_and_signed(component: Any) -> None:
    with pytest.raises(ConfigError, match=f"^not on Sundays\n  .says {WHOSE}") as caught:
        make(component("refuses"))
    assert type(caught.value) is ConfigError


def test_a_refusal_of_a_built_in_is_not_signed_and_keeps_its_type() -> None:
    with (
        pytest.raises(CheckpointNotFoundError, match="^gone$"),
        attributed(Plugins.discover().get("eviction", "lru"), "to start"),
    ):
        raise CheckpointNotFoundError("gone")


def test_settings_are_handed_over_if_there_are_any(component: Any) -> None:
    assert make_with_settings(component("Good", "settings=f'{__name__}:Settings'")).settings.size == 3


def test_a_class_that_is_not_the_one_wanted(component: Any) -> None:
    good = component("Good")
    with pytest.raises(PluginError, match="returned Good instead of AttentionShape"):
        make(good, contract=AttentionShape)
    with pytest.raises(PluginError, match="which lacks these members of Tokenizer: vocab_size, "):
        make(good, contract=Tokenizer)
    with pytest.raises(PluginError, match="must be a subclass of int"):
        make(good, base=int)


def test_what_passes_is_left_alone(component: Any) -> None:
    def is_memory(error: BaseException) -> bool:
        return isinstance(error, MemoryError)

    with pytest.raises(MemoryError), attributed(component("Good"), "to start", passes=is_memory):
        raise MemoryError


def test_an_error_tells_whose_code_it_came_through(component: Any) -> None:
    mine = component("Good")
    others = [Plugins.discover().get("eviction", "lru"), Plugins.discover().get("schedule", "fcfs")]
    try:
        make(mine).eviction_priority(None)
    except AttributeError as error:
        description = described(error, [*others, mine])
        alone = described(error, others[1:])
    assert description.startswith("AttributeError: ") and "(in eviction 'lru' from sglang-plug" in description
    assert "called from eviction 'mine' from sglang-whose 1.0" in description and "fcfs" not in description
    assert alone.startswith("AttributeError: ") and "(in " not in alone


def test_a_model_that_declares_images_must_support_them() -> None:
    class Blind(Model):
        pass

    class VisionModel(Model, SupportsImages):
        pass

    def problem(target: type, *inputs: str) -> str | None:
        actual: Any = SimpleNamespace(spec=ModelSpec(name="A", target="a:A", inputs=frozenset(inputs)))
        return declaration_problem(actual, target)

    assert problem(Blind, "text") is problem(VisionModel, "text", "image") is problem(VisionModel, "text") is None
    assert "Blind must have SupportsImages as a second base" in (problem(Blind, "text", "image") or "")


class Stated:
    def plain(self, one: int, two: int, *, three: int = 0) -> None: ...
    @classmethod
    def of_class(cls, one: int) -> None: ...
    def open(self, one: int) -> None: ...
    def static(self, one: int) -> None: ...


class Kept(Stated):
    def plain(self, a: int, b: int = 0, *, three: int = 1, four: int = 2) -> None: ...
    def open(self, *numbers: int) -> None: ...
    @staticmethod
    def static(one: int) -> None: ...


class Broken:
    def plain(self, one: int, two: int) -> None: ...
    def open(self) -> None: ...
    @staticmethod
    def static() -> None: ...


@pytest.mark.parametrize("is_instance", [True, False])
def test_methods_that_cannot_be_called_as_the_contract_says(is_instance: bool) -> None:
    assert list(signature_problems(Kept() if is_instance else Kept, Stated)) == []
    assert [name for name, _ in signature_problems(Broken() if is_instance else Broken, Stated)] == [
        "plain",
        "open",
        "static",
    ]
