"""Write the tables of ``docs/structured-outputs.md`` from what the grammar backends enforce.

``--check`` writes nothing and fails if the page is not what would be written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from generated_page import with_blocks, write_or_check

from sglang_plug import GrammarSpec, Plugins
from sglang_plug_backends.grammars.json_schema.formats import DEFINED_FORMATS, FORMATS
from sglang_plug_backends.grammars.json_schema.keywords import BY_TYPE, OTHER_ASSERTIONS, STANDALONE
from sglang_plug_backends.grammars.tags import FIELDS
from sglang_plug_backends.llguidance.schema import KEYWORDS, KNOWN_FORMATS

PAGE = Path(__file__).with_name("structured-outputs.md")


def keywords() -> Iterator[str]:
    """One row for each keyword."""
    yield "| where | keyword | limits |"
    yield "|---|---|---|"
    for name, limits in STANDALONE.items():
        yield f"| any | `{name}` | {limits} |"
    for kind, names in BY_TYPE.items():
        if kind not in ("integer", "boolean", "null"):
            where = "numbers and integers" if kind == "number" else f"{kind}s"
            yield from (f"| {where} | `{name}` | {limits} |" for name, limits in names.items())


def refused() -> Iterator[str]:
    """The assertions that are refused."""
    yield f"{', '.join(f'`{name}`' for name in sorted(OTHER_ASSERTIONS))}."


def formats() -> Iterator[str]:
    """The formats of strings, and those that are refused."""
    yield f"* enforced: {', '.join(f'`{name}`' for name in sorted(FORMATS))}."
    yield f"* refused: {', '.join(f'`{name}`' for name in sorted(DEFINED_FORMATS - FORMATS.keys()))}."


def tags() -> Iterator[str]:
    """The parts of structural tags."""
    yield "| format | fields |"
    yield "|---|---|"
    yield from (
        f"| `{name}` | {', '.join(f'`{field}`' for field in sorted(fields))} |" for name, fields in FIELDS.items()
    )


def backends() -> Iterator[str]:
    """One row for each backend: the kinds it takes."""
    specs = [component.spec for component in Plugins.discover().all("grammar")]
    kinds = ("json_schema", "json_object", "regex", "ebnf", "structural_tag", "choice")
    yield "| `--grammar-backend` | " + " | ".join(f"`{kind}`" for kind in kinds) + " |"
    yield "|---" * (len(kinds) + 1) + "|"
    for spec in sorted((spec for spec in specs if isinstance(spec, GrammarSpec)), key=lambda spec: spec.name):
        yield f"| `{spec.name}` | " + " | ".join("yes" if kind in spec.forms else "no" for kind in kinds) + " |"


def llguidance() -> Iterator[str]:
    """Keywords and formats of the llguidance backend."""
    yield f"Keywords: {', '.join(f'`{name}`' for name in sorted(KEYWORDS))}."
    yield f"Formats: {', '.join(f'`{name}`' for name in sorted(KNOWN_FORMATS))}."


TABLES = {
    "backends": backends,
    "llguidance": llguidance,
    "keywords": keywords,
    "refused": refused,
    "formats": formats,
    "tags": tags,
}


def page() -> str:
    """The page with its generated blocks renewed."""
    return with_blocks(PAGE, TABLES)


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page, __doc__))
