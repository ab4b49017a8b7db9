"""The server's own routes pass caller and context to every job; the context variables are for routes of plugins."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

EXPLICIT = {"caller", "context"}


def implicit_jobs(tree: ast.AST) -> Iterator[int]:
    """Yield the lines where a job is made without its caller or its context."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Job":
            if not {keyword.arg for keyword in node.keywords} >= EXPLICIT:
                yield node.lineno


def test_jobs_of_the_server_name_their_caller_and_their_context(sources: list[Any]) -> None:
    faults = [
        f"{source.path}:{line}" for source in sources if source.package == "api" for line in implicit_jobs(source.tree)
    ]
    assert faults == []


def test_a_job_without_a_caller_is_reported() -> None:
    text = "Job(tokens=[1])\nJob(tokens=[1], caller=a)\nJob(tokens=[1], caller=a, context=b)"
    assert list(implicit_jobs(ast.parse(text))) == [1, 2]
