"""The generated pages about the HTTP API and the options are complete and up to date."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_plug import PluginOptions, Plugins
from sglang_plug.plugins.flags import read_plugin_flags
from sglang_plug.plugins.installed.discovery import DISTRIBUTION
from sglang_plug_api.options.option_table import options
from sglang_plug_api.options.parsing import server_config
from tests.api.protocol.endpoints_of_others import SGLANG, VLLM
from tests.api.protocol.fields_of_others import REQUESTS

DOCS = Path(__file__).parents[2] / "docs"


def text(page: str) -> str:
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["api", "compatibility", "config"])
def test_the_page_is_what_would_be_written(page: str) -> None:
    command = [sys.executable, str(DOCS / f"generate_{page}.py"), "--check"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_group_of_routes_is_on_the_page() -> None:
    page = text("api")
    names = Plugins.discover(PluginOptions(allow=(DISTRIBUTION,))).names("route")
    assert len(names) > 10
    assert [name for name in names if f"`route:{name}`" not in page] == []


def test_every_field_and_endpoint_of_the_others_is_on_the_compatibility_page() -> None:
    page = text("compatibility")
    endpoints, _, fields = page.partition("## Fields")
    for path in (*SGLANG.split(), *VLLM.split()):
        assert f"| `{path}` |" in endpoints
    sections = dict(re.findall(r"^### (.*?)\n(.*?)(?=^### |\Z)", fields, re.MULTILINE | re.DOTALL))
    for request in REQUESTS:
        (section,) = (rows for title, rows in sections.items() if title.split(": ")[-1] == request.location)
        assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == request.names


def test_links_within_the_api_page_lead_somewhere() -> None:
    page = text("api")
    targets = {title.lower().replace(" ", "-") for title in re.findall(r"^##+ ([\w ]+)$", page, re.MULTILINE)}
    links = set(re.findall(r"\]\(#([\w-]+)\)", page))
    assert links and links <= targets


def test_every_option_is_on_the_page_in_all_spellings() -> None:
    page = text("config")
    for option in options():
        for spelling in (*option.flags, *option.keys, option.variable):
            assert f"`{spelling}`" in page, spelling


def test_the_example_of_a_file_can_be_served(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", text("config"), re.DOTALL)
    file = tmp_path / "serve.yaml"
    file.write_text(example, encoding="utf-8")
    plugin_options, flags, rest = read_plugin_flags(["--config", str(file)], {})
    assert rest == []
    config = server_config(argparse.Namespace(**vars(flags)), Plugins.discover(plugin_options))
    assert (config.engine.model.path, config.port, config.api_keys) == ("./my-model", 8080, ("first-key", "second-key"))
    assert config.engine.plugins.settings == {"triton": {"splits": 8}}
