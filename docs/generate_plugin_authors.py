"""Write the table of ``docs/plugin-authors.md``: example size, test time and detected faults of each kind.

The times are those of ``template_times.toml``, which ``measure_templates.py`` writes. Planted bugs are counted from the
tests that are marked ``planted_bug``, which prove that each one is named; one that is not found has the mark ``xfail``
there. ``--check`` writes nothing and fails if the table is out of date.
"""

from __future__ import annotations

import ast
import importlib
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from generate_hooks import ROOT, kind_of, parse, specs
from generated_page import DOCS, with_blocks, write_or_check

from sglang_plug.testing.installed.checks import CHECKS
from sglang_plug_api.scaffold.names import PluginNames
from sglang_plug_api.scaffold.rendering import render_plugin

PAGE = DOCS / "plugin-authors.md"
TESTS = ROOT / "tests"
MARK = "planted_bug"
TIMES = DOCS / "template_times.toml"


@dataclass
class Planted:
    """Numbers of the faulty components of a kind in the tests."""

    caught: int = 0
    planted: int = 0

    def add(self, caught: int, missed: int) -> None:
        """Add the numbers of further components."""
        self.caught += caught
        self.planted += caught + missed


def planted_bugs() -> dict[str, Planted]:
    """Count the planted bugs in the tests, by kind."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    counts: dict[str, Planted] = {}
    for file in sorted(TESTS.rglob("test_*.py")):
        if f"pytest.mark.{MARK}(" not in file.read_text(encoding="utf-8"):
            continue
        module = importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
        for test in vars(module).values():
            marks = [mark for mark in getattr(test, "pytestmark", ()) if hasattr(mark, "args")]
            for mark in marks:
                if mark.name == MARK:
                    counts.setdefault(mark.args[0], Planted()).add(*count_cases(marks))
    return counts


def count_cases(marks: list[Any]) -> tuple[int, int]:
    """Return how many cases of a test are expected to pass, and how many to fail."""
    lists = [list(mark.args[1]) for mark in marks if mark.name == "parametrize"]
    missed = sum(_is_missed(case) for cases in lists for case in cases)
    whole = prod(len(cases) for cases in lists)
    return (0, whole) if any(mark.name == "xfail" for mark in marks) else (whole - missed, missed)


def _is_missed(case: Any) -> bool:
    return any(mark.name == "xfail" for mark in getattr(case, "marks", ()))


def example_lines(kind: str) -> tuple[int, int]:
    """Count the lines of code of the example's package and of its tests.

    Blank lines, comments and docstrings do not count.
    """
    counts = {False: 0, True: 0}
    for path, text in render_plugin(kind, PluginNames("example")).items():
        if path.endswith(".py"):
            counts[path.startswith("tests/")] += code_lines(text)
    return counts[False], counts[True]


def code_lines(source: str) -> int:
    tree = ast.parse(source)
    documents: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            documents |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(1 for number, line in lines if line.strip() and line.strip()[0] != "#" and number not in documents)


def table() -> Iterator[str]:
    """Yield the rows of the table, in the order of the specs."""
    bugs: Mapping[str, Planted] = planted_bugs()
    seconds: Mapping[str, float] = measured()["seconds"]
    yield "| kind | lines of the example | lines of its tests | seconds | conformance test | planted bugs found |"
    yield "|---|---|---|---|---|---|"
    for kind in filter(None, map(kind_of, specs(parse("plugins.specs")))):
        checks = ", ".join(f"`{name}`" for name in CHECKS[kind])
        count = bugs.get(kind, Planted())
        lines, test_lines = example_lines(kind)
        sizes = f"{lines} | {test_lines} | {seconds[kind]:.0f}"
        yield f"| [`{kind}`](kinds/{kind}.md) | {sizes} | {checks} | {count.caught} of {count.planted} |"
    caught, planted = (sum(getattr(count, name) for count in bugs.values()) for name in ("caught", "planted"))
    yield f"| all | | | | | {caught} of {planted} |"


def measured() -> dict[str, Any]:
    """Return the date, the number of processors and the seconds of the last measurement."""
    return tomllib.loads(TIMES.read_text(encoding="utf-8"))


def times() -> Iterator[str]:
    """Yield the sentences about the measurement."""
    facts = measured()
    yield "Seconds are those from `sglang-plug plugins new` to a conformance test that passes: the example is created,"
    yield "installed and tested as `plugins new` says, each start of Python included. They were measured on"
    yield f"{facts['measured']:%Y-%m-%d}, on a machine with {facts['processors']} processors, by `make template-times`;"
    yield "whatever else the machine did meanwhile is in them."


def page() -> str:
    """Return the page with its table renewed."""
    return with_blocks(PAGE, {"kinds": table, "times": times})


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page, __doc__))
