"""Weight updates: either every rank uses the new weights, or none does."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_plug import RequestError
from sglang_plug.engine.execution.weight_update import WeightUpdater


@dataclass
class Resolved:
    """The resolved components that a weight update reads."""

    checkpoint: Any
    choices: Any
    config: Any


class Panic(BaseException):
    """A stand-in for the exceptions of a library written in Rust."""


class Components:
    """A stand-in for ``RankComponents`` whose models are strings."""

    def __init__(self, *, reading: BaseException | None = None, installing: BaseException | None = None) -> None:
        self.model, self.used = "old", ["old"]
        self.votes: list[bool] = []
        self.others_succeed = True
        self.scales_of: list[str] = []
        self._installing = installing

        def read(request: Any) -> Any:
            if reading is not None:
                raise reading
            return SimpleNamespace(config=SimpleNamespace(), architecture="A", source=request.source)

        component = SimpleNamespace(factory=lambda: read)
        self.resolved = Resolved(
            checkpoint=SimpleNamespace(config=SimpleNamespace(), architecture="A"),
            choices={"checkpoint": SimpleNamespace(component=component)},
            config=SimpleNamespace(model=SimpleNamespace(overrides={})),
        )

    def all_ranks_succeeded(self, done: bool) -> bool:
        self.votes.append(done)
        return done and self.others_succeed

    def load(self, resolved: Any) -> str:
        return f"weights of {resolved.checkpoint.source}"

    def use(self, model: str) -> None:
        self.model = model
        self.used.append(model)
        if model != "old" and self._installing is not None:
            raise self._installing

    def use_scales(self, kv: Any) -> None:
        self.scales_of.append(self.model)


def update(components: Components, others: bool = True) -> tuple[list[bool], Exception | None]:
    """Update the weights of a rank; return its votes, and the error if there is one."""
    components.others_succeed = others
    try:
        WeightUpdater(components)("new")  # type: ignore[arg-type]
    except Exception as error:
        return components.votes, error
    return components.votes, None


def test_all_ranks_use_the_new_weights() -> None:
    components = Components()
    assert update(components) == ([True], None)
    assert components.model == "weights of new" and components.scales_of == ["weights of new"]


@pytest.mark.parametrize(
    "components",
    [
        Components(reading=KeyError("a bug")),
        Components(installing=MemoryError("no room")),
        Components(reading=Panic("index out of bounds")),
        Components(installing=Panic("index out of bounds")),
    ],
)
def test_a_rank_that_fails_votes_and_keeps_the_old_weights(components: Components) -> None:
    votes, error = update(components)
    assert votes == [False] and isinstance(error, Exception)
    assert components.model == "old" and components.used[-1] == "old" and components.scales_of == []


def test_a_rank_that_could_gives_up_the_new_weights_if_another_one_could_not() -> None:
    components = Components()
    votes, error = update(components, others=False)
    assert votes == [True] and isinstance(error, RequestError) and "another rank could not" in str(error)
    assert components.used == ["old", "weights of new", "old"] and components.scales_of == []
