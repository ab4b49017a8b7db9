"""The conformance tests of executors and of tensor-parallel models find planted faults."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import ConfigError
from sglang_plug.testing import check_ranks

from . import faulty_executors as faulty
from .forgetful_model import ForgetfulModel


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_the_built_ins_pass(executor: str) -> None:
    check_ranks(executor=executor)


def test_another_model(tiny_model: Callable[[str], Any]) -> None:
    check_ranks(str(tiny_model("qwen3-moe").path), size=2)


@pytest.fixture
def declare(install: Any) -> Callable[[type[faulty.FaultyExecutor]], str]:
    """Return ``declare(executor)``, which installs a plugin with the executor and returns the executor's name."""

    def make(executor: type[faulty.FaultyExecutor]) -> str:
        install(
            "sglang-faulty-executor",
            f"""
            @hookimpl
            def register_executors():
                yield ExecutorSpec(name="faulty", target="{executor.__module__}:{executor.__name__}")
            """,
        )
        return "faulty"

    return make


@pytest.mark.planted_bug("executor")
@pytest.mark.parametrize(
    "executor",
    [faulty.LostSumExecutor, faulty.SwappedExecutor, faulty.SumOfOneRankExecutor, faulty.DoubledExecutor],
)
def test_collectives_that_are_wrong(declare: Callable[..., str], executor: type[faulty.FaultyExecutor]) -> None:
    with pytest.raises(AssertionError, match="2 ranks of 'faulty' fail .prompt 0.: "):
        check_ranks(executor=declare(executor))


def test_ranks_that_pass_everything_on_have_no_fault(declare: Callable[..., str]) -> None:
    check_ranks(executor=declare(faulty.FaultyExecutor))


@pytest.mark.planted_bug("model")
def test_a_model_whose_layers_forget_the_others(install: Any, tiny_model: Any, tmp_path: Path) -> None:
    install(
        "sglang-forgetful-model",
        f"""
        @hookimpl
        def register_models():
            target = "{ForgetfulModel.__module__}:ForgetfulModel"
            yield ModelSpec(name="ForgetfulModel", target=target, parallel=True)
        """,
    )
    path = shutil.copytree(tiny_model("qwen3-0.6b").path, tmp_path / "forgetful")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "architectures": ["ForgetfulModel"]}))
    with pytest.raises(AssertionError, match="one rank generates"):
        check_ranks(str(path))


@pytest.mark.planted_bug("executor")
@pytest.mark.parametrize(
    "executor", [faulty.LosesMessagesExecutor, faulty.RepeatsMessagesExecutor, faulty.CutsMessagesExecutor]
)
def test_messages_that_do_not_arrive_as_they_were_sent(
    declare: Callable[..., str], executor: type[faulty.FaultyExecutor]
) -> None:
    try:
        with pytest.raises(AssertionError, match="takes longer than 4 seconds|2 ranks"):
            check_ranks(executor=declare(executor), timeout=4)
    finally:
        while executor.started:
            executor.started.pop().close()


def test_a_model_that_cannot_be_shared(tiny_model: Callable[[str], Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="several ranks cannot share"):
        check_ranks(str(tiny_model("bloom-560m").path))
