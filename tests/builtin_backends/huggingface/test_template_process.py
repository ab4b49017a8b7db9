"""Template rendering is stopped at its limits, and the next prompt is rendered normally."""

from __future__ import annotations

import os
import signal
import threading
from collections import UserDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_plug import TemplateError
from sglang_plug_backends.huggingface.template_process import TemplateProcesses, TemplateSetup

HELLO = [{"role": "user", "content": "Hello"}]
PLAIN = "{% for message in messages %}[{{ message.content }}]{% endfor %}{{ bos_token }}"
HOSTILE = {
    "repeats": "{{ 'a' * 10**9 }}",
    "repeats a variable": "{{ messages[0].content * 10**9 }}",
    "power": "{{ 10 ** (10 ** 9) }}",
    "power of a variable": "{{ (messages | length + 9) ** (10 ** 9) }}",
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "recursion": "{% macro f(n) %}{{ f(n - 1) if n }}{{ f(n - 1) if n }}{% endmacro %}{{ f(60) }}",
    "accumulates": "{% set ns = namespace(x='aa') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "keeps a list": (
        "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = ns.x + ['a' * 999999] %}{% endfor %}"
    ),
    "filters": "{{ 'a' | center(2 * 10**9) }}",
    "indents": "{{ messages | tojson(indent=10**9) }}",
    "formats": "{{ '%1000000000d' % 1 }}{{ '{:1000000000}'.format(1) }}",
    "replaces": "{{ ('a' * 99999).replace('a', 'b' * 99999) }}",
    "invents": "{{ lipsum(n=10**7) }}",
}


@pytest.fixture(scope="module")
def processes() -> TemplateProcesses:
    """Return processes with low limits."""
    renderer = TemplateProcesses()
    templates = {**HOSTILE, "plain": PLAIN, "broken": "{% if %}", "long": "{% for i in range(2000) %}x{% endfor %}"}
    renderer.configure(
        TemplateSetup(
            templates=templates, constants={"bos_token": "<s>"}, cpu_seconds=0.3, memory=512 << 20, characters=1000
        )
    )
    return renderer


def rendered(processes: TemplateProcesses, name: str, messages: Any = HELLO, **options: Any) -> str:
    return processes.render(name, {"messages": messages, **options})


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_end_within_their_limits(processes: TemplateProcesses, name: str) -> None:
    with pytest.raises(TemplateError, match="seconds for these|memory|MemoryError|OverflowError|characters of these"):
        rendered(processes, name)
    assert rendered(processes, "plain") == "[Hello]<s>"


def test_the_characters_of_a_prompt_are_limited(processes: TemplateProcesses) -> None:
    with pytest.raises(TemplateError, match="a prompt of more than 1000 characters"):
        rendered(processes, "long")


def test_a_template_that_cannot_be_compiled(processes: TemplateProcesses) -> None:
    with pytest.raises(TemplateError, match="cannot be compiled"):
        processes.check("broken")
    processes.check("plain")


def test_refusals_say_what_they_are_about(processes: TemplateProcesses) -> None:
    with pytest.raises(TemplateError, match="'range' cannot be set") as caught:
        rendered(processes, "plain", variables={"range": 1})
    assert caught.value.about == "variables"
    with pytest.raises(TemplateError, match="cannot render these messages") as caught:
        rendered(processes, "plain", [1])
    assert caught.value.about == "messages"


def test_any_text_arrives_as_it_was(processes: TemplateProcesses) -> None:
    for content in ("Ü\U0001f600\0\r\n", "\ud800 alone", "</s>", "a" * 900):
        assert rendered(processes, "plain", ({"role": "user", "content": content},)) == f"[{content}]<s>"
    assert rendered(processes, "plain", [UserDict(HELLO[0])]) == "[Hello]<s>"
    with pytest.raises(TemplateError, match="object cannot be written as JSON"):
        rendered(processes, "plain", [{"role": "user", "content": object()}])


def test_many_threads_share_a_few_processes(processes: TemplateProcesses) -> None:
    results: list[str] = []

    def render(index: int) -> None:
        results.append(rendered(processes, "plain", [{"role": "user", "content": str(index)}]))

    threads = [threading.Thread(target=render, args=(index,)) for index in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == sorted(f"[{index}]<s>" for index in range(20))


atoms = st.sampled_from(["messages", "'ab'", "9", "10**9", "messages[0].content", "range(99999)", "[1, 'x']", "{}"])
FORMS = [
    *(f"({{}} {operator} {{}})" for operator in ("+", "*", "**", "%", "~", "//", "in")),
    *(f"({{}} | {name}({{}}))" for name in ("center", "indent", "join", "tojson", "batch", "wordwrap", "replace")),
    *(f"{{}}.{name}({{}}, 'x')" for name in ("ljust", "replace", "format", "zfill", "join", "expandtabs")),
]
expressions = st.recursive(
    atoms,
    lambda inner: st.tuples(st.sampled_from(FORMS), inner, inner).map(lambda parts: parts[0].format(*parts[1:])),
    max_leaves=6,
)
statements = expressions.map("{{{{ {} }}}}".format) | st.tuples(expressions, expressions).map(
    lambda pair: f"{{% for i in {pair[0]} %}}{{% for j in {pair[1]} %}}{{{{ i ~ j }}}}{{% endfor %}}{{% endfor %}}"
)


@settings(max_examples=15 if settings().derandomize else 300)
@given(statements)
def test_no_template_harms_the_process_that_asks(template: str) -> None:
    processes = TemplateProcesses()
    processes.configure(
        TemplateSetup(templates={"random": template}, cpu_seconds=0.2, memory=512 << 20, characters=100_000)
    )
    try:
        assert len(rendered(processes, "random")) <= 100_000
    except TemplateError:
        pass


def children() -> set[int]:
    """Return the processes that this thread has started."""
    return set(map(int, Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux")
@pytest.mark.parametrize("noticed", [False, True])
def test_an_idle_process_that_was_killed_fails_no_request(noticed: bool) -> None:
    before, renderer = children(), TemplateProcesses()
    renderer.configure(TemplateSetup(templates={"plain": PLAIN}))
    assert rendered(renderer, "plain") == "[Hello]"
    (process,) = children() - before
    os.kill(process, signal.SIGKILL if noticed else signal.SIGSTOP)
    if noticed:
        os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    else:  # it is alive when it is chosen, and ends before it answers
        threading.Timer(0.2, os.kill, (process, signal.SIGKILL)).start()
    assert rendered(renderer, "plain") == "[Hello]"
    assert process not in children()
