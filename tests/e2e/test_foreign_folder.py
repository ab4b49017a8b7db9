"""A server that is started in a folder with a checkpoint executes no file of it, whatever the files are called."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

import sglang_plug_models.demo

from .servers import TIMEOUT, command_of

LOADED = """
import sys
import sglang_plug.engine.processes.worker
import sglang_plug_backends.structured_outputs.grammar_worker
import sglang_plug.engine.tensor_parallel.worker_rank
import sglang_plug_api.lifecycle.server
print(*{name.partition(".")[0] for name in sys.modules})
"""
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the demo checkpoint and a module for each importable name, which records its execution."""
    folder = tmp_path_factory.mktemp("work") / "checkpoint"
    (demo,) = Path(sglang_plug_models.demo.__file__).parent.glob("*/config.json")
    shutil.copytree(demo.parent, folder)
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, timeout=TIMEOUT)
    names = {*done.stdout.split(), *packages_distributions(), *sys.stdlib_module_names, "sitecustomize"}
    assert {"msgspec", "torch", "runpy", "sglang_plug", "xgrammar"} <= names
    text = f"open({str(folder.parent / 'executed')!r}, 'a').write(__file__ + chr(10))"
    for name in filter(str.isidentifier, names):
        (folder / f"{name}.py").write_text(text)
    return folder


def executed(folder: Path) -> str:
    """Return the planted files that were executed."""
    marks = folder.parent / "executed"
    return marks.read_text() if marks.exists() else ""


def test_a_server_there_executes_none_of_its_files(planted: Path, launch: Any) -> None:
    server = launch(".", "--tp-size", "2", "--set", "processes.threads=1", folder=planted)
    body = {"text": "A number: ", "sampling_params": {"json_schema": json.dumps(SCHEMA), "max_new_tokens": 40}}
    assert isinstance(json.loads(server.generate(body)["text"])["n"], int)
    modules = ("engine.processes.worker", "engine.tensor_parallel.worker_rank", "structured_outputs.grammar_worker")
    commands = [command_of(pid) for pid in server.members()]
    assert all(any(name.encode() in command for command in commands) for name in modules)
    assert executed(planted) == ""


def test_commands_there_execute_none_of_its_files(planted: Path) -> None:
    program = Path(sys.executable).with_name("sglang-plug")
    done = subprocess.run(
        [program, "plugins", "doctor"], cwd=planted, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert "sglang-plug" in done.stdout, done.stderr
    assert executed(planted) == ""


def test_python_m_takes_no_library_from_there(tmp_path: Path) -> None:
    """With ``python -m``, only modules that Python imports before any program runs can come from the current folder."""
    for name in ("msgspec", "pluggy", "torch", "zmq", "uvicorn"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'a').write(__file__)")
    done = subprocess.run(
        [sys.executable, "-m", "sglang_plug", "plugins", "doctor"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert "sglang-plug" in done.stdout, done.stderr
    assert not (tmp_path / "executed").exists()
