"""The page about tool calls says which formats can be enforced."""

from __future__ import annotations

import re
from pathlib import Path

from sglang_plug import OutputParser, Plugins

PAGE = Path(__file__).parents[2] / "docs" / "tool-calling.md"


def test_the_table_says_what_can_be_enforced() -> None:
    plugins = Plugins.discover()
    _, _, table = PAGE.read_text(encoding="utf-8").partition("| parser of calls |")
    for line in table.partition("\n\n")[0].splitlines()[2:]:
        enforced = line.rsplit("|", 2)[1].strip()
        for name in re.findall(r"`([\w-]+)`", line.split("|")[1]):
            parser = plugins.get("tool-parser", name).load(OutputParser)
            constraint = parser.structure({"f": {"type": "object"}}, required=True, parallel=True)
            assert enforced == ("no" if constraint is None else "required, named, strict"), name
