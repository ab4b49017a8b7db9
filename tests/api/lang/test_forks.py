"""Tests of forks and copies of states."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sglang_plug_lang import LanguageError, function, gen, user_begin, user_end
from sglang_plug_lang.ir import AppendForks


def test_forks_run_at_the_same_time_and_come_back(backend: Any) -> None:
    backend.reply = lambda prompt: f"<{prompt.text[-2]}>"

    def program(s: Any) -> None:
        s += "base;" + gen("first") + ";"
        s.sync()
        backend.gather = threading.Barrier(3)  # breaks unless all three are asked together
        forks = s.fork(3)
        assert len(forks) == 3
        for index, fork in enumerate(forks):
            fork += f"{index}:" + gen("tip")
        forks[0] += "!"
        assert forks[1]["first"] == "<e>"
        s += "+".join(fork["tip"] for fork in forks)
        forks.join()

    state = function(program).run()
    assert state.error() is None
    assert state["tip"] == ["<0>", "<1>", "<2>"]
    assert state.text() == "base;<e>;<0>+<1>+<2>"
    assert sorted(prompt.text for prompt in backend.prompts[1:]) == [f"base;<e>;{index}:" for index in range(3)]


def test_forks_appended_to_the_parent(backend: Any) -> None:
    def program(s: Any) -> None:
        s += "base;"
        forks = s.fork(2)
        forks += "all,"
        forks += ["a", "b"]
        forks += lambda index: f"{index}" + gen(f"x{index}")
        forks.join("concate_and_append")

    backend.reply = lambda prompt: "!"
    assert function(program).run().text() == "base;all,a0!all,b1!"


def test_forks_are_appended_to_a_parent_that_went_on(backend: Any) -> None:
    def program(s: Any) -> None:
        s += "base;"
        forks = s.fork(2)
        forks += ["a", "b"]
        s += "meanwhile;"
        forks.join("concate_and_append")
        s += AppendForks(forks[1:]) + "."

    state = function(program).run()
    assert state.text() == "base;meanwhile;abb."
    assert state.forked_text() == state.text()


def test_a_state_cannot_append_itself(backend: Any) -> None:
    def program(s: Any) -> None:
        s += "base;"
        s += AppendForks([s])

    error = function(program).run().error()
    assert isinstance(error, LanguageError) and "its own text" in str(error)


def test_what_forks_refuse(backend: Any) -> None:
    def program(s: Any) -> None:
        with pytest.raises(ValueError, match="at least 1"):
            s.fork(0)
        forks = s.fork(2)
        with pytest.raises(ValueError, match="1 values for 2 forks"):
            forks += ["a"]
        with pytest.raises(ValueError, match="gather_variable"):
            forks.join("other")
        with pytest.raises(TypeError, match="cannot be replaced"):
            forks[0] = s
        assert [len(forks[:1]), len(list(forks))] == [1, 2]

    assert function(program).run().error() is None


def test_a_copy_goes_its_own_way(backend: Any) -> None:
    def program(s: Any) -> None:
        s += user_begin() + "a"
        with s.copy() as other:
            other += "b" + gen("x")
            other += user_end()
        s += "c"
        s += user_end()
        s["kept"] = other["x"]

    state = function(program).run()
    assert [message["content"] for message in state.messages()] == ["ac"]
    assert (state["kept"], "x" in state, "kept" in state) == ("<1>", False, True)
