"""Earlier public names keep working, with a warning that names the current one."""

from __future__ import annotations

import pytest

import sglang_plug
from sglang_plug.renamed import RENAMED


@pytest.mark.parametrize("name", sorted(RENAMED))
def test_an_earlier_name_is_the_current_one_with_a_warning(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"sglang_plug.{name} is now sglang_plug.{RENAMED[name]}"):
        renamed = getattr(sglang_plug, name)
    assert renamed is getattr(sglang_plug, RENAMED[name])
    assert name not in sglang_plug.__all__
