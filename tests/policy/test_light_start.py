"""Discovering plugins imports no heavy library, so that ``--help`` is fast."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "fastapi", "transformers", "numpy", "pydantic", "zmq", "safetensors", "triton")


def test_discovery_imports_no_heavy_library() -> None:
    code = f"""
import sys
from sglang_plug import Plugins, hookimpl, EngineConfig
plugins = Plugins.discover()
assert not plugins.failures, [str(failure) for failure in plugins.failures]
assert plugins.names("model") and plugins.names("eviction")
print(*sorted(set({HEAVY!r}) & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


def test_a_tokenizer_needs_no_torch() -> None:
    """Loading a tokenizer does not import torch, with which the API process would be slower and larger."""
    code = """
import sys
from pathlib import Path
import sglang_plug_models.demo
from sglang_plug import TokenizerSource
from sglang_plug_backends.huggingface.tokenizer import load_tokenizer
from sglang_plug_api.lifecycle import server
(file,) = Path(sglang_plug_models.demo.__file__).parent.glob("*/tokenizer.json")
assert load_tokenizer(TokenizerSource(path=file.parent)).encode("the")
print(*sorted({"torch"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_commands_that_load_no_model_need_no_torch() -> None:
    """Commands without a model do not import torch, which takes seconds."""
    code = """
import contextlib, io, sys
from sglang_plug.__main__ import main
for arguments in (["plugins", "list"], ["plugins", "show", "radix"], ["version"], ["serve", "--help"]):
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(arguments) == 0, arguments
print(*sorted({"torch", "transformers"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
