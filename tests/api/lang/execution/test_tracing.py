"""Tests of traces, which record what a program appends without running a model."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_plug_lang import assistant, function, gen, select, system, user
from sglang_plug_lang.execution.tracing import Argument, TracedVariable
from sglang_plug_lang.ir import CachePrefix, Fork, ForkItem, RoleBegin, RoleEnd, Text


@function
def few_shot(s: Any, prompt: str, question: str) -> None:
    s += prompt
    s += "Q: " + question + "\n"
    s += "A:" + gen("answer", stop="\n")


def test_a_program_without_a_backend() -> None:
    trace = few_shot.bind(prompt="Answer.\n").trace()
    nodes = (Text("Answer.\n"), Text("Q: "), Argument("question"), Text("\n"), Text("A:"), gen("answer", stop="\n"))
    assert trace.nodes == nodes
    lines = trace.last_node.print_graph_dfs().splitlines()
    assert len(lines) == 6 and lines[2] == "%2 = Argument(name='question')"


def test_arguments_and_defaults(backend: Any) -> None:
    assert Text("Q: why\n") in few_shot.trace(question="why", backend=backend).nodes
    assert backend.prompts == []


def test_generated_variables_are_placeholders() -> None:
    def program(s: Any) -> None:
        s += user(gen("x")) + select("y", ["a", "b"])
        s += "again " + s["x"]
        forks = s.fork(2)
        forks += lambda index: f"{index}" + s["y"]
        s["set"] = 3
        assert s["set"] == 3
        s += forks[0]["x"]

    trace = function(program).trace()
    assert trace.nodes[0] == RoleBegin("user") and trace.nodes[2] == RoleEnd("user")
    x, y = TracedVariable("x", gen("x")), TracedVariable("y", select("y", ["a", "b"]))
    assert trace.nodes[4:] == (Text("again "), x, Fork(2), x)
    assert [fork.nodes for fork in trace.forks] == [(ForkItem(index), Text(str(index)), y) for index in range(2)]


@pytest.mark.parametrize("use", [lambda x: f"is {x}?", lambda x: str(x), lambda x: x and "a", lambda x: list(x)])
def test_a_placeholder_cannot_be_looked_at(use: Any) -> None:
    with pytest.raises(TypeError, match="'question' is unknown"):
        function(lambda s, question: s.__iadd__(use(question))).trace()


def test_programs_that_it_starts_are_traced(backend: Any) -> None:
    @function
    def inner(s: Any, tip: str) -> None:
        s += "Expand " + tip + gen("text")

    @function
    def outer(s: Any) -> None:
        s += "Tip:" + gen("tip")
        s += inner(tip=s["tip"])["text"]

    trace = outer.trace()
    assert trace.forks[0].nodes == (Text("Expand "), TracedVariable("tip", gen("tip")), gen("text"))
    assert trace.nodes[-1] == TracedVariable("text", gen("text"))
    assert backend.prompts == []
    assert outer.run()["tip"] == "<1>"


class Caching:
    """A fake backend with a prefix cache."""

    def __init__(self, backend: Any) -> None:
        self.cached: list[str] = []
        self.chat_template = backend.chat_template
        self.generate, self.stream, self.select = backend.generate, backend.stream, backend.select
        self.flush_cache, self.get_server_info = backend.flush_cache, backend.get_server_info

    def cache_prefix(self, prefix_str: str) -> None:
        self.cached.append(prefix_str)


def test_the_constant_beginning_is_cached(backend: Any) -> None:
    def program(s: Any, question: str) -> None:
        s += system("Be brief.")
        s += user("Now: " + question)
        raise AssertionError("the program goes on after its constant beginning")

    caching = Caching(backend)
    prefix = function(program).cache(caching)
    assert function(program).prefix(backend) == prefix and backend.prompts == []
    assert prefix == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nNow: "
    assert caching.cached == [prefix]


def test_a_beginning_that_ends_at_a_placeholder_that_is_looked_at(backend: Any) -> None:
    caching = Caching(backend)

    def program(s: Any, items: Any) -> None:
        s += "List:"
        for item in items:
            s += item

    assert function(program).cache(caching) == "List:"
    assert function(lambda s, text: s.__iadd__(text)).cache(caching) == ""
    assert caching.cached == ["List:"]


def test_a_program_fills_the_cache_itself(backend: Any) -> None:
    caching = Caching(backend)

    @function
    def program(s: Any) -> None:
        s += CachePrefix()
        s += system("Be brief.")
        s += CachePrefix()
        s += gen("x")

    assert program.run(backend=caching)["x"] == "<1>"
    assert caching.cached == ["<|im_start|>system\nBe brief.<|im_end|>\n"]
    assert program.run(backend=backend)["x"] == "<2>"


def test_a_backend_without_a_cache_is_left_alone(backend: Any) -> None:
    assert function(lambda s: s.__iadd__("a" + assistant(gen("x")))).cache() == "a<|im_start|>assistant\n"
    assert backend.prompts == []
