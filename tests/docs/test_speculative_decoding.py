"""The drafter of docs/speculative-decoding.md works."""

from __future__ import annotations

import re
from pathlib import Path

from sglang_plug.config import PluginOptions
from sglang_plug.plugins.registry import Plugins
from sglang_plug.testing import check_drafter

PAGE = Path(__file__).resolve().parents[2] / "docs" / "speculative-decoding.md"


def test_the_example_keeps_the_contract(tmp_path: Path) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    file = tmp_path / "followers.py"
    file.write_text(source)
    plugins = Plugins.discover(PluginOptions(files=(str(file),), strict=True))
    drafter = plugins.get("drafter", "followers").load()
    check_drafter(drafter)
    sequence = drafter().begin([], salt="")
    assert list(sequence.propose([1, 2, 3, 1], 3)) == [2, 3, 1]
