from __future__ import annotations

import subprocess
import sys

import pytest

from sglang_plug import Facts, Plugins
from sglang_plug_backends.huggingface.checkpoint import open_checkpoint
from sglang_plug_backends.huggingface.tokenizer import load_tokenizer


@pytest.mark.parametrize(("kind", "target"), [("checkpoint", open_checkpoint), ("tokenizer", load_tokenizer)])
def test_auto_is_huggingface(kind: str, target: object) -> None:
    component = Plugins.discover().resolve(kind, "auto", Facts())
    assert component.spec.name == "huggingface"
    assert component.load() is target


def test_declaring_imports_nothing_heavy() -> None:
    code = (
        "import sys, sglang_plug_backends.huggingface as plugin\n"
        "list(plugin.register_weight_loaders()), list(plugin.register_tokenizers())\n"
        "print([name for name in ('torch', 'transformers', 'tokenizers', 'jinja2') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
