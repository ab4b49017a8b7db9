from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import sglang_plug
from sglang_plug.plugins import specs

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_what_the_docstrings_say() -> None:
    done = subprocess.run(
        [sys.executable, DOCS / "generate_contracts.py", "--check"], stderr=subprocess.PIPE, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_kind_and_every_class_that_a_plugin_makes_is_there() -> None:
    page = (DOCS / "contracts.md").read_text(encoding="utf-8")
    for name in ("Model", "AttentionBackend", "Kernels", "Quantization", "PrefixCache", "EvictionPolicy"):
        assert f"\n### {name}\n" in page
    for name in ("SchedulePolicy", "Checkpoint", "WeightLoader", "Tokenizer", "GrammarBackend", "Grammar"):
        assert f"\n### {name}\n" in page
    for name in ("OutputParser", "CallStart", "Observer", "RequestEvent", "NodeStats", "Facts"):
        assert f"\n### {name}\n" in page and hasattr(sglang_plug, name)
    kinds = [spec.kind for spec in vars(specs).values() if isinstance(spec, type) and hasattr(spec, "kind")]
    assert all(f"| `{kind}` |" in page for kind in kinds) and len(kinds) > 12
