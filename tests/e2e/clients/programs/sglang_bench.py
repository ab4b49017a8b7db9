"""SGLang's ``bench_serving``: arguments are the API, the tokenizer's folder and the server's address."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

import transformers  # noqa: F401 - before the stand-in, which it would take for the real package


class Torchvision:
    """Stand-in for torchvision: its wheels need a build of torch for GPUs, and sending requests needs none of it."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Return a spec for the modules of ``torchvision``."""
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == "torchvision" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a mock in place of the module."""
        return MagicMock(__path__=[], __spec__=spec, __version__="0.0")

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing."""


sys.meta_path.append(Torchvision())
try:
    from sglang.benchmark.serving import cli_main
except Exception as error:
    print(json.dumps({"skip": f"sglang cannot be imported here: {error}"}))
    sys.exit()

backend, tokenizer, url = sys.argv[1:]
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "result.jsonl"
    sys.argv[1:] = ["--backend", backend, "--base-url", url, "--model", "demo", "--tokenizer", tokenizer]
    sys.argv += ["--dataset-name", "random-ids", "--random-input-len", "20", "--random-output-len", "8"]
    sys.argv += ["--num-prompts", "6", "--warmup-requests", "1", "--output-file", str(file)]
    cli_main()
    result = json.loads(file.read_text().splitlines()[-1])
print(json.dumps({name: result.get(name) for name in ("completed", "total_output_tokens")}))
