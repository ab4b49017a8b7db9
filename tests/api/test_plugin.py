"""Tests of the names that route plugins import."""

from __future__ import annotations

import pytest

from sglang_plug_api import plugin


def test_an_earlier_name_still_works_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match=r"Piece is now sglang_plug_api\.plugin\.JobOutput"):
        assert plugin.Piece is plugin.JobOutput
    with pytest.raises(AttributeError, match="no attribute 'Pieces'"):
        _ = plugin.Pieces
