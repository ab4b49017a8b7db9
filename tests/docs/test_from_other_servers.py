"""The migration tables from other servers name options, commands and pages that exist here."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from sglang_plug import Plugins
from sglang_plug.plugins.flags import plugin_flags
from sglang_plug_api.benchmarking.serve import ServeAction
from sglang_plug_api.options.option_aliases import alias_hint
from sglang_plug_api.options.option_table import options
from tests.parser_flags import flags_of

DOCS = Path(__file__).parents[2] / "docs"
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
PAGES = ("from-vllm", "from-sglang", "from-llama-cpp")
ACCEPTED_BY_HINT = ("from-vllm", "from-sglang")
"""Pages whose options a user may try on ``sglang-plug serve``."""


BENCH_SERVE = "Flags of `bench serve`"
"""Heading of the section whose options are those of a benchmark instead of ``serve``."""


def rows(page: str, section: str | None = None) -> list[tuple[str, str]]:
    """Return the two cells of every row of a section, by default of all sections about serving."""
    parts = (DOCS / f"{page}.md").read_text(encoding="utf-8").split("\n## ")
    kept = [part for part in parts if part.startswith(section or "") and (section or not part.startswith(BENCH_SERVE))]
    text = "\n".join(kept)
    cells = re.findall(r"^\| (.*?) \| (.*) \|$", text, re.MULTILINE)
    return [row for row in cells if not row[0].startswith("-")]


def own_flags() -> set[str]:
    """Return the options of ``serve`` and of the commands that the pages name."""
    parser = argparse.ArgumentParser(parents=[plugin_flags()], conflict_handler="resolve")
    plugins = Plugins.discover()
    for name in ("serve", "chat", "complete"):
        plugins.get("command", name).load().arguments(parser, plugins)
    return flags_of(parser)


@pytest.mark.parametrize("page", PAGES)
def test_options_on_the_right_exist(page: str) -> None:
    named = {flag for _, right in rows(page) for flag in FLAG.findall(right)}
    assert len(named) > 3
    assert named <= own_flags()


@pytest.mark.parametrize("page", PAGES)
def test_options_that_are_the_same_exist(page: str) -> None:
    same = {flag for left, right in rows(page) if right.startswith("the same") for flag in FLAG.findall(left)}
    assert len(same) > 1
    serving = {flag for option in options() for flag in option.flags}
    assert same <= serving


@pytest.mark.parametrize("page", ACCEPTED_BY_HINT)
def test_every_option_on_the_left_is_accepted_or_answered_with_a_hint(page: str) -> None:
    serving = {flag for option in options() for flag in option.flags}
    flags = {flag for cell, _ in rows(page) for flag in FLAG.findall(cell)}
    assert [flag for flag in sorted(flags) if flag not in serving and alias_hint(flag) is None] == []


def test_the_flags_of_bench_serve_are_those_of_the_table() -> None:
    parser = argparse.ArgumentParser()
    ServeAction().arguments(parser, Plugins.discover())
    own = flags_of(parser)
    table = [(set(FLAG.findall(left)), right) for left, right in rows("from-vllm", BENCH_SERVE)]
    same = set[str]().union(*(flags for flags, right in table if right != "not offered"))
    absent = set[str]().union(*(flags for flags, right in table if right == "not offered"))
    assert len(same) > 20 and same <= own
    assert absent and not absent & own
    assert own - same - {"--help", "-h"} == {"--output-file", "--output-json", "--html", "--api-key", "--no-ignore-eos"}
