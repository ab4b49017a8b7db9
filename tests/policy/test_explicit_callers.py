"""The server's own routes pass caller and context to every job; the context variables are for routes of plugins."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

EXPLICIT = {"caller", "context"}


def implicit_jobs(tree: ast.AST) -> Iterator[int]:
    """Yield the lines where a job is made without its caller or its context, or a chat is encoded without a context."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            named = {keyword.arg for keyword in node.keywords}
            if isinstance(node.func, ast.Name) and node.func.id == "Job" and not named >= EXPLICIT:
                yield node.lineno
            if ast.unparse(node.func).endswith("engine.encode_chat") and "context" not in named:
                yield node.lineno


def test_jobs_of_the_server_name_their_caller_and_their_context(sources: list[Any]) -> None:
    faults = [
        f"{source.path}:{line}" for source in sources if source.package == "api" for line in implicit_jobs(source.tree)
    ]
    assert faults == []


def test_a_job_without_a_caller_is_reported() -> None:
    text = "Job(tokens=[1])\nJob(tokens=[1], caller=a)\nJob(tokens=[1], caller=a, context=b)"
    assert list(implicit_jobs(ast.parse(text))) == [1, 2]


def test_a_chat_without_a_context_is_reported() -> None:
    text = "engine.encode_chat(messages)\nengine.encode_chat(messages, context=a)"
    assert list(implicit_jobs(ast.parse(text))) == [1]
