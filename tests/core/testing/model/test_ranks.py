"""The kit for executors and models that ranks share finds what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sglang_plug import ConfigError
from sglang_plug.layers import Row
from sglang_plug.testing import check_ranks
from sglang_plug_backends.executors.threads import ThreadCollectives


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_the_built_ins_pass(executor: str) -> None:
    check_ranks(executor=executor)


def test_another_model(tiny_model: Callable[[str], Any]) -> None:
    check_ranks(str(tiny_model("qwen3-moe").path), size=2)


def lost_sum(self: ThreadCollectives, x: Tensor) -> Tensor:
    return self._exchange(x, lambda brought: brought[0].clone())


def swapped(self: ThreadCollectives, x: Tensor) -> Tensor:
    return self._exchange(x, lambda brought: torch.cat(brought[::-1], dim=-1))


@pytest.mark.parametrize(("name", "wrong"), [("all_reduce", lost_sum), ("all_gather", swapped)])
def test_collectives_that_are_wrong(monkeypatch: pytest.MonkeyPatch, name: str, wrong: Any) -> None:
    monkeypatch.setattr(ThreadCollectives, name, wrong)
    with pytest.raises(AssertionError, match="2 ranks of 'threads' fail .prompt 0.: one rank generates"):
        check_ranks()


def test_a_model_whose_layers_forget_the_others(monkeypatch: pytest.MonkeyPatch, tiny_model: Any) -> None:
    monkeypatch.setattr(Row, "forward", lambda self, x: self._multiply(x))
    with pytest.raises(AssertionError, match="one rank generates"):
        check_ranks(str(tiny_model("qwen3-0.6b").path))


def test_a_model_that_cannot_be_shared(tiny_model: Callable[[str], Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="several ranks cannot share"):
        check_ranks(str(tiny_model("bloom-560m").path))
