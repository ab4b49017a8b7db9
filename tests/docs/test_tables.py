"""Tests that the options and components that pages name exist."""

from __future__ import annotations

import argparse
import functools
import re
from pathlib import Path

import pytest

from sglang_plug import Plugins
from sglang_plug.plugins.flags import plugin_flags
from tests.parser_flags import flags_of

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("docs/*.md"), ROOT / "README.md"])
OTHERS = {
    "docs/benchmarks.md": None,
    "docs/compatibility-policy.md": {"--for", "--release"},
    "docs/config.md": {"--name", "--no-name"},
    "docs/containers.md": None,
    "docs/deployment.md": {"--url"},
    "docs/distributed.md": {"--address", "--engine-gpus", "--engines", "--head", "--ingresses", "--max-engines"},
    "docs/from-llama-cpp.md": None,
    "docs/from-sglang.md": None,
    "docs/from-vllm.md": None,
    "docs/frontend-language.md": {"--benchmark"},
    "docs/installation.md": {"--index-url", "--no-deps"},
    "docs/kv-tiers.md": {"--bytes"},
    "docs/operations.md": {"--url"},
    "docs/plugin-index.md": {"--index", "--kind"},
    "docs/write-a-plugin.md": {"--into", "--junit", "--strict"},
}
"""Options of other programs, and examples, by page; ``None`` allows all options of a page."""
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
KINDS = {
    "attention": "attention",
    "kernels": "kernels",
    "quantization": "quantization",
    "grammar": "grammar",
    "prefix cache": "prefix-cache",
    "KV store": "kv-store",
    "eviction": "eviction",
    "schedule": "schedule",
    "deployment": "deployment",
    "routing": "routing",
    "store": "store",
    "weights": "weights",
    "checkpoint": "checkpoint",
    "logits processor": "logits-processor",
    "step extension": "step-extension",
    "adapter": "adapter",
    "drafter": "drafter",
    "executor": "executor",
    "tokenizer": "tokenizer",
    "media processor": "media-processor",
    "observer": "observer",
    "command": "command",
}
"""Kinds of components by row of the README's table."""
ALIASES = {"attention": {"torch_native"}}
ELSEWHERE = {"model", "tool-parser", "reasoning-parser", "route"}
"""Kinds whose rows have no complete list of names, and those that ``test_the_tables_of_parsers`` reads."""


@functools.cache
def plugins() -> Plugins:
    return Plugins.discover()


@functools.cache
def flags() -> set[str]:
    """Return the options of all commands and of their actions."""
    known = set()
    for name in plugins().names("command"):
        parser = argparse.ArgumentParser(parents=[plugin_flags()], conflict_handler="resolve")
        plugins().get("command", name).load().arguments(parser, plugins())
        known |= flags_of(parser)
    return known


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_options_exist(page: str) -> None:
    allowed = OTHERS.get(page, set())
    if allowed is not None:
        assert set(FLAG.findall(text(page))) <= flags() | allowed | {"--help"}


@pytest.mark.parametrize("row", KINDS)
def test_the_table_of_what_is_built_in(row: str) -> None:
    kind = KINDS[row]
    cells = re.search(rf"^\| {row} \| (.*?) \|", text("README.md"), re.MULTILINE)
    assert cells is not None
    assert set(re.findall(r"`([\w-]+)`", cells[1])) == set(plugins().names(kind)) - ALIASES.get(kind, set())


def test_every_kind_has_a_row() -> None:
    assert set(KINDS.values()) | ELSEWHERE == set(plugins().kinds())


def test_the_plugins_of_the_repository_are_named() -> None:
    page = text("README.md").partition("## What is built in")[2].partition("## Read the code")[0]
    folders = [path.parent.name for path in (ROOT / "plugins").glob("*/pyproject.toml")]
    assert len(folders) > 5
    assert [name for name in folders if name not in page and name.removeprefix("sglang-plug-") not in page] == []


@pytest.mark.parametrize(
    ("head", "kind"), [("parser of calls", "tool-parser"), ("parser of reasoning", "reasoning-parser")]
)
def test_the_tables_of_parsers(head: str, kind: str) -> None:
    page = text("docs/tool-calling.md")
    rows = re.search(rf"^\| {head} \|.*?\n\|[-|]+\n(.*?)\n\n", page, re.MULTILINE | re.DOTALL)
    assert rows is not None
    named = [re.findall(r"`([\w-]+)`", line.split("|")[1]) for line in rows[1].splitlines()]
    assert sorted(name for names in named for name in names) == sorted(plugins().names(kind))
    listed = re.search(r"^\| tool calls, reasoning \| (.*?) \|", text("README.md"), re.MULTILINE)
    assert listed is not None
    calls, reasoning = listed[1].split(";")
    cell = calls if kind == "tool-parser" else reasoning
    assert set(re.findall(r"`([\w-]+)`", cell)) == {names[0] for names in named}
