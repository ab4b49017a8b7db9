from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from sglang_plug import Plugins
from sglang_plug.plugins.installed.discovery import DISTRIBUTION

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_registry_and_tests_say() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "generate_models.py", "--check"], stderr=subprocess.PIPE, text=True
    )
    assert done.returncode == 0, done.stderr


def test_every_model_of_the_project_is_on_the_page() -> None:
    page = (ROOT / "docs" / "models.md").read_text()
    own = [
        component.spec.name
        for component in Plugins.discover().all("model")
        if component.plugin.distribution == DISTRIBUTION
    ]
    assert own and all(f"| `{name}` |" in page for name in own)


def test_what_is_called_served_is_served_in_a_test() -> None:
    source = (ROOT / "tests" / "families.py").read_text()
    families = re.findall(r'^        "([\w.-]+)": \w+Config\(', source, re.MULTILINE)
    end_to_end = "".join(path.read_text() for path in (ROOT / "tests" / "e2e").glob("test_*.py"))
    assert len(families) > 10
    assert [name for name in families if f'"{name}"' not in end_to_end] == []
