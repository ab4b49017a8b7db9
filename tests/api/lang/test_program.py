"""Tests of programs: arguments, options, batches, streams, backends."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sglang_plug_lang import (
    Function,
    assistant,
    flush_cache,
    function,
    gen,
    get_server_info,
    global_config,
    set_default_backend,
    user,
)


@function
def ask(s: Any, question: str, temperature_of: str = "room") -> str:
    """Ask a question about a temperature."""
    s += user(question + temperature_of)
    s += assistant(gen("answer"))
    return question


def test_a_program_looks_like_its_function() -> None:
    assert isinstance(ask, Function)
    assert (ask.__name__, ask.__doc__) == ("ask", "Ask a question about a temperature.")


def test_the_returned_value_is_kept(backend: Any) -> None:
    assert ask("a").ret_value == "a"


def test_arguments_by_position_and_name(backend: Any) -> None:
    for state in (ask("a", "b"), ask.run(question="a", temperature_of="b"), ask.bind(temperature_of="b")("a")):
        assert state.messages()[0]["content"] == "ab"
    assert ask.bind(temperature_of="b").bind(question="a")().messages()[0]["content"] == "ab"


def test_a_parameter_wins_over_an_option(backend: Any) -> None:
    @function
    def program(s: Any, stop: str) -> None:
        s += stop + gen("x", max_tokens=1)

    assert program(stop="a", top_k=3).text() == "a<1>"
    assert (backend.options[0].stop, backend.options[0].top_k) == (None, 3)


def test_unknown_arguments_are_refused(backend: Any) -> None:
    with pytest.raises(TypeError, match="temprature"):
        ask("a", temprature=0)
    with pytest.raises(TypeError, match="no parameter 'nothing'"):
        ask.bind(nothing=1)
    with pytest.raises(TypeError, match="the state"):
        function(lambda: None)


def test_the_programs_own_mistakes_are_raised(backend: Any) -> None:
    @function
    def program(s: Any) -> None:
        s += gen("x")
        _ = s["y"]

    with pytest.raises(KeyError, match="'y' was generated"):
        program()
    state = program.run(stream=True)
    assert isinstance(state.error(), KeyError)
    with pytest.raises(KeyError):
        list(state.text_iter())


@pytest.mark.parametrize("threads", ["auto", 1, 3])
def test_a_batch_keeps_its_order(backend: Any, threads: Any) -> None:
    backend.reply = lambda prompt: prompt.messages[-1]["content"].upper()
    batch = [{"question": f"q{index} "} for index in range(20)]
    states = ask.run_batch(batch, num_threads=threads, temperature=0)
    assert [state["answer"] for state in states] == [f"Q{index} ROOM" for index in range(20)]
    assert {options.temperature for options in backend.options} == {0}


def test_a_batch_runs_at_the_same_time(backend: Any) -> None:
    backend.gather = threading.Barrier(4)
    assert all(state["answer"] for state in ask.run_batch([["a", "b"]] * 4))


def test_a_batch_as_an_iterator(backend: Any) -> None:
    states = ask.run_batch([("a",), ("b",)], generator_style=True)
    assert iter(states) is states
    assert [state.ret_value for state in states] == ["a", "b"]
    assert list(ask.run_batch([], generator_style=True)) == ask.run_batch([]) == []


def test_a_progress_bar_counts(backend: Any, capfd: Any) -> None:
    ask.run_batch([("a",)] * 3, progress_bar=True)
    assert capfd.readouterr().err.endswith("3/3 done\n")
    ask.run_batch([("a",)] * 3)
    assert capfd.readouterr() == ("", "")


def test_threads_are_at_least_one(backend: Any) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ask.run_batch([("a",)], num_threads=0)


def test_streams_come_in_pieces_while_the_program_runs(backend: Any) -> None:
    gate = threading.Event()

    @function
    def program(s: Any) -> None:
        s += "start " + gen("x")
        _ = s["x"]
        assert gate.wait(240)
        s += " more " + gen("y")

    state = program.run(stream=True)
    pieces = state.text_iter()
    assert [next(pieces) for _ in range(4)] == ["start ", "<", "1", ">"]
    assert list(state.text_iter("x")) == ["<", "1", ">"]
    gate.set()
    assert state["y"] == "<2>"
    assert "".join(pieces) == " more <2>"


def test_without_a_backend() -> None:
    set_default_backend(None)
    for call in (lambda: ask("a"), flush_cache, get_server_info, lambda: ask.run_batch([("a",)])):
        with pytest.raises(RuntimeError, match="set_default_backend"):
            call()
    with pytest.raises(TypeError, match="neither a backend nor an engine"):
        ask("a", backend="http://localhost")


def test_a_backend_for_one_run(backend: Any) -> None:
    from copy import copy

    other = copy(backend)
    other.prompts = []
    assert ask("a", backend=other)["answer"] == ask.run_batch([("a",)], backend=other)[0]["answer"]
    assert (len(other.prompts), len(backend.prompts)) == (2, 0)


def test_questions_to_the_default_backend(backend: Any) -> None:
    assert flush_cache() is True
    assert get_server_info() == {"prompts": 0}


def test_the_default_backend_as_configuration(backend: Any) -> None:
    assert global_config.default_backend is backend
    global_config.default_backend = None
    with pytest.raises(RuntimeError, match="set_default_backend"):
        ask("a")
    with pytest.raises(TypeError, match="neither a backend nor an engine"):
        global_config.default_backend = 3


def test_a_program_with_options(backend: Any) -> None:
    @function(num_api_spec_tokens=8)
    def program(s: Any) -> None:
        """Say one word."""
        s += gen("x")

    assert (program.num_api_spec_tokens, program.__doc__, program.func.__name__) == (8, "Say one word.", "program")
    assert program()["x"] == "<1>"
