"""The kit for executors and models that ranks share finds what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sglang_plug import ConfigError, LaunchSpec, RankGroup
from sglang_plug.layers import RowParallelLinear
from sglang_plug.testing import check_ranks
from sglang_plug_backends.executors.threads import ThreadCollectives, ThreadExecutor


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_the_built_ins_pass(executor: str) -> None:
    check_ranks(executor=executor)


def test_another_model(tiny_model: Callable[[str], Any]) -> None:
    check_ranks(str(tiny_model("qwen3-moe").path), size=2)


def lost_sum(self: ThreadCollectives, x: Tensor) -> Tensor:
    return self._exchange(x, lambda brought: brought[0].clone())


def swapped(self: ThreadCollectives, x: Tensor) -> Tensor:
    return self._exchange(x, lambda brought: torch.cat(brought[::-1], dim=-1))


def sum_of_one_rank(self: ThreadCollectives, x: Tensor) -> Tensor:
    """Rank 1 keeps its own part."""
    return self._exchange(x, lambda brought: sum(brought) if self.rank == 0 else brought[1].clone())


def doubled(self: ThreadCollectives, x: Tensor) -> Tensor:
    return self._exchange(x, lambda brought: brought[0] + 2 * brought[1])


@pytest.mark.planted_bug("executor")
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("all_reduce", lost_sum),
        ("all_gather", swapped),
        ("all_reduce", sum_of_one_rank),
        ("all_reduce", doubled),
    ],
)
def test_collectives_that_are_wrong(monkeypatch: pytest.MonkeyPatch, name: str, wrong: Any) -> None:
    monkeypatch.setattr(ThreadCollectives, name, wrong)
    with pytest.raises(AssertionError, match="2 ranks of 'threads' fail .prompt 0.: "):
        check_ranks()


@pytest.mark.planted_bug("model")
def test_a_model_whose_layers_forget_the_others(monkeypatch: pytest.MonkeyPatch, tiny_model: Any) -> None:
    monkeypatch.setattr(RowParallelLinear, "forward", lambda self, x: self._multiply(x))
    with pytest.raises(AssertionError, match="one rank generates"):
        check_ranks(str(tiny_model("qwen3-0.6b").path))


class Faulty(RankGroup):
    """A group of ranks whose messages a test interferes with."""

    def __init__(self, group: RankGroup) -> None:
        self.group, self.collectives = group, group.collectives
        self.sent = 0

    def send(self, message: bytes) -> None:
        self.sent += 1
        self.pass_on(message)

    def pass_on(self, message: bytes) -> None:
        self.group.send(message)

    def failure(self) -> str | None:
        return self.group.failure()

    def close(self) -> None:
        self.group.close()


class LosesMessages(Faulty):
    def pass_on(self, message: bytes) -> None:
        if self.sent != 5:
            self.group.send(message)


class RepeatsMessages(Faulty):
    def pass_on(self, message: bytes) -> None:
        self.group.send(message)
        if self.sent == 5:
            self.group.send(message)


class CutsMessages(Faulty):
    def pass_on(self, message: bytes) -> None:
        self.group.send(message[:-1] if self.sent == 5 else message)


@pytest.mark.planted_bug("executor")
@pytest.mark.parametrize("kind", [LosesMessages, RepeatsMessages, CutsMessages])
def test_messages_that_do_not_arrive_as_they_were_sent(monkeypatch: pytest.MonkeyPatch, kind: type[Faulty]) -> None:
    groups = list[Faulty]()
    start = ThreadExecutor.start

    def faulty(self: ThreadExecutor, spec: LaunchSpec) -> Faulty:
        groups.append(kind(start(self, spec)))
        return groups[-1]

    monkeypatch.setattr(ThreadExecutor, "start", faulty)
    try:
        with pytest.raises(AssertionError, match="takes longer than 4 seconds|2 ranks"):
            check_ranks(timeout=4)
    finally:
        for group in groups:
            group.close()


def test_a_model_that_cannot_be_shared(tiny_model: Callable[[str], Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="several ranks cannot share"):
        check_ranks(str(tiny_model("bloom-560m").path))
