"""``sglang-plug plugins test`` runs the conformance tests of the components that an installed plugin declares."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from xml.etree import ElementTree

import pytest

MODULE = """
from sglang_plug import EvictionSpec, ModelSpec, RouteSpec, ToolParserSpec, hookimpl

@hookimpl
def register_cache_policies():
    yield EvictionSpec(name="oldest", target="mine_parts:Oldest")
    yield EvictionSpec(name="reversed", target="mine_parts:Newest", example="mine_parts:newest")
    yield EvictionSpec(name="random", target="mine_parts:Random")

@hookimpl
def register_models():
    yield ModelSpec(name="MineForCausalLM", target="mine_parts:Mine")

@hookimpl
def register_output_parsers():
    yield ToolParserSpec(name="misspelt", target="mine_parts:Parser", example="mine_parts:misspelt")
"""
PARTS = """
import random
from sglang_plug import Model, OutputParser, Text

class Oldest:
    def eviction_priority(self, node):
        return node.used

class Newest:
    def eviction_priority(self, node):
        return -node.used

class Random:
    def eviction_priority(self, node):
        return random.random()

class Mine(Model):
    pass

class Parser(OutputParser):
    def feed(self, text):
        return [Text(text)] if text else []
    def finish(self):
        return []

def newest():
    return {"useful_last": False}

def misspelt():
    return {"outptus": []}
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with an installed distribution ``mine``."""
    metadata = tmp_path / "mine-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[sglang_plug]\nmine = mine_plugin\n")
    (tmp_path / "mine_plugin.py").write_text(dedent(MODULE))
    (tmp_path / "mine_parts.py").write_text(dedent(PARTS))
    return tmp_path


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sglang_plug", "plugins", "test", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(site)},
        timeout=240,
    )


@pytest.mark.slow
def test_components_pass_fail_and_are_left_out(site: Path) -> None:
    results = site / "results.xml"
    done = run(site, "mine", "--junit", str(results))
    assert done.returncode == 1, done.stdout + done.stderr
    cases = {case.attrib["name"]: [child.tag for child in case] for case in ElementTree.parse(results).iter("testcase")}
    assert cases == {
        "test_component[eviction:oldest]": [],
        "test_component[eviction:random]": ["failure"],
        "test_component[eviction:reversed]": [],
        "test_component[model:MineForCausalLM]": ["skipped"],
        "test_component[tool-parser:misspelt]": ["failure"],
    }
    assert "check_model needs config: give the spec of model 'MineForCausalLM' from mine 1.0" in done.stdout
    assert "the example of tool-parser 'misspelt' from mine 1.0 (plugin 'mine') has 'outptus'" in done.stdout


@pytest.mark.slow
def test_one_component_can_be_named_and_what_cannot_be_tested_can_fail(site: Path) -> None:
    assert run(site, "oldest").returncode == 0
    assert run(site, "model:MineForCausalLM").returncode == 0
    strict = run(site, "model:MineForCausalLM", "--strict")
    assert strict.returncode == 1
    assert "1 of 1 components were not tested" in strict.stderr


def test_what_is_not_installed_cannot_be_tested(site: Path) -> None:
    unknown = run(site, "nobody")
    assert unknown.returncode == 2
    assert "'nobody' is not an installed plugin, distribution, kind:name or name" in unknown.stderr
