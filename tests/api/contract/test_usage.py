from __future__ import annotations

from pathlib import Path

import pytest

from sglang_plug_api.contract.changes import compare
from sglang_plug_api.contract.surface import Member, Surface
from sglang_plug_api.contract.usage import AffectedLocations, read_usage
from tests.api.contract.contracts import OLD, changed, with_member, without, without_member

DERIVED = """\
from sglang_plug import Node, Policy

class Mine(Policy):
    def rank(self, node):
        return node.tokens

Node(tokens=3)
"""
FULFILS = """\
import sglang_plug as plug

spec = plug.PolicySpec()

class Mine:
    def rank(self, node):
        return node.used
"""
LAYERS = "from sglang_plug import layers\n\nlayers.Linear().width\n"
STAR = "from sglang_plug import *\n"
UNRELATED = "class Mine:\n    def rank(self, node):\n        return node.tokens\n"
HOOK = "from sglang_plug import hookimpl\n\n@hookimpl\ndef register_policies(config): ...\n"
LATE = "def f():\n    return copy([1])\n\nfrom sglang_plug import copy\n"

RANK = with_member("sglang_plug.Policy", "rank", Member("method", "(self, node: Node, now=0) -> int", required=True))
MUST = with_member("sglang_plug.Policy", "must", Member("method", "(self) -> None", required=True))
FIELD = with_member("sglang_plug.Node", "hits", Member("field", "int"))
NODE_GONE, COPY_GONE = without("sglang_plug.Node"), without("sglang_plug.copy")
TOKENS_GONE, USED_GONE = without_member("sglang_plug.Node", "tokens"), without_member("sglang_plug.Node", "used")
WIDTH_GONE = without_member("sglang_plug.layers.Linear", "width")
CASES = [
    ("removed class", DERIVED, NODE_GONE, [1]),
    ("removed field, read and given", DERIVED, TOKENS_GONE, [5, 7]),
    ("removed field of a type that is only met", FULFILS, USED_GONE, [7]),
    ("removed field that is not used", DERIVED, USED_GONE, []),
    ("signature of an inherited method", DERIVED, RANK, [4]),
    ("signature of a method of the target of a spec", FULFILS, RANK, [6]),
    ("new method of a base", DERIVED, MUST, [3]),
    ("new method of the target of a spec", FULFILS, MUST, [5]),
    ("new field of what is created", DERIVED, FIELD, [7]),
    ("new field of what is not created", FULFILS, FIELD, []),
    ("member of a module", LAYERS, WIDTH_GONE, [3]),
    ("star import", STAR, NODE_GONE, [1]),
    ("import at the end of a file", LATE, COPY_GONE, [4]),
    ("hook whose argument is gone", HOOK, changed("hooks.register_policies", text="(facts: int)"), [4]),
    ("removed hook", HOOK, without("hooks.register_policies"), [4]),
    ("code with the same names", UNRELATED, RANK, []),
    ("code that reads the same attribute", UNRELATED, TOKENS_GONE, []),
]


@pytest.mark.parametrize(("source", "new", "lines"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_lines_that_a_change_affects(source: str, new: Surface, lines: list[int], tmp_path: Path) -> None:
    file = tmp_path / "plugin.py"
    file.write_text(source)
    locations = AffectedLocations(read_usage([("plugin.py", file)]), OLD)
    affected = [
        location for change in compare(OLD, new) for location in locations.of(change) if change.level == "breaking"
    ]
    assert sorted({location.line for location in affected}) == lines


def test_files_that_are_not_python_are_named(tmp_path: Path) -> None:
    broken, binary = tmp_path / "broken.py", tmp_path / "binary.py"
    broken.write_text("def f(:\n")
    binary.write_bytes(b"\x00\xff")
    usage = read_usage([("broken.py", broken), ("binary.py", binary), ("gone.py", tmp_path / "gone.py")])
    assert [line.partition(":")[0] for line in usage.unreadable] == ["broken.py", "binary.py", "gone.py"]
