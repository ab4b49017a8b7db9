from __future__ import annotations

import pytest

from sglang_plug_api.plugin_index.contract_range import ContractRange


@pytest.mark.parametrize(
    ("text", "version", "included"),
    [
        (">=1.0,<2", "1.0", True),
        (">=1.0,<2", "1.12", True),
        (">=1.0, <2", "2.0", False),
        (">=1.9,<2", "1.10", True),
        (">=1.1,<2", "1.0", False),
        ("==1.3", "1.3", True),
        ("==1.3", "1.4", False),
        ("<2", "1.99", True),
    ],
)
def test_versions_in_a_range(text: str, version: str, included: bool) -> None:
    assert ContractRange.parse(text).includes(version) is included


@pytest.mark.parametrize("text", ["", "1.0", ">1.0", ">=1.0,", "~=1.0", ">=1.0.0", ">=x"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a range of versions"):
        ContractRange.parse(text)
