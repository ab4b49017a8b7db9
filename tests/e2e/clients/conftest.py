"""Third-party clients, run as separate programs, because their dependencies conflict with those of the server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[3]
HOME, AGENTS = ROOT / ".venv-clients", ROOT / ".venv-agents"
"""Environments that ``make clients`` creates; agents need newer versions of OpenAI's client than other libraries."""
LOADS = HOME / "loads"
"""The load generators of SGLang and vLLM without the dependencies of their engines."""
OFFLINE = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LANGSMITH_TRACING": "false",
    "HF_HUB_OFFLINE": "1",
    "OPENAI_API_KEY": "None",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "HAYSTACK_TELEMETRY_ENABLED": "False",
}
TIMEOUT = 300


def python(needs: str) -> str | None:
    """Return the interpreter of an environment with a package; this interpreter is tried last."""
    look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({needs!r}) is None)"
    own = [str(path) for home in (HOME, AGENTS) if (path := home / "bin" / "python").exists()]
    return next(
        (
            interpreter
            for interpreter in (*own, sys.executable)
            if not subprocess.run([interpreter, "-c", look]).returncode
        ),
        None,
    )


def run(command: list[str], url: str, **environment: str) -> Any:
    """Run a program and return its report, which is JSON; skip the test if the report is a reason to skip."""
    done = subprocess.run(
        [*command, url],
        env={**os.environ, **OFFLINE, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout.splitlines()[-1])
    if "skip" in report:
        pytest.skip(report["skip"])
    return report


class Programs:
    """Runs programs in the folder ``programs`` that use a client."""

    def python(self, name: str, url: str, *, needs: str) -> Any:
        """Run a Python program that imports the package ``needs``, and return its report."""
        interpreter = python(needs)
        if interpreter is None:
            pytest.skip(f"{needs} is not installed: make clients")
        return run([interpreter, str(PROGRAMS / f"{name}.py")], url)

    def load_generator(self, name: str, url: str, *arguments: str, needs: str) -> Any:
        """Run a load generator, with torch and the tokenizers of this environment, and return its report."""
        if not (LOADS / needs).is_dir():
            pytest.skip(f"{needs} is not installed: make clients")
        return run(
            [sys.executable, "-W", "ignore", str(PROGRAMS / f"{name}.py"), *arguments], url, PYTHONPATH=str(LOADS)
        )

    def node(self, name: str, url: str, *, needs: str) -> Any:
        """Run a program with node that requires the package ``needs``, and return its report."""
        modules = HOME / "node" / "node_modules"
        node = shutil.which("node")
        if node is None or not (modules / needs).exists():
            pytest.skip(f"node or its package {needs} is not installed: make clients")
        return run([node, str(PROGRAMS / f"{name}.mjs")], url, MODULES=f"{modules}/")


@pytest.fixture(scope="session")
def programs() -> Programs:
    """The runner of client programs."""
    return Programs()


@pytest.fixture(scope="session")
def messages_server(shared_launcher: Any) -> Any:
    """A server of the demo model with Anthropic's routes."""
    return shared_launcher("--plugins-dir", str(ROOT / "plugins"))


@pytest.fixture(scope="session")
def reranker(shared_launcher: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server of a cross-encoder with random weights."""
    from tests.e2e.document_models import make_models

    folder = make_models(tmp_path_factory.mktemp("models"))["BAAI/bge-reranker-v2-m3"]
    return shared_launcher("--model-path", str(folder), "--is-embedding")
