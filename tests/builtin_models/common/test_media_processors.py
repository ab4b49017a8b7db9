"""The media processor of each family of vision-language models passes the conformance test."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_plug.testing import check_media_processor
from tests.e2e.vision_families import FAMILIES
from tests.e2e.vision_models import make_vision_model, png


@pytest.mark.parametrize("family", FAMILIES)
def test_processors_pass(family: str, tmp_path: Path) -> None:
    model = make_vision_model(family, tmp_path)
    marks = model.tokens(model.family.in_text)
    placeholder = marks[len(marks) // 2]  # some families surround it with a start and an end
    check_media_processor(model.family.processor, tmp_path, [png(40, 30, 1), png(30, 50, 2)], placeholder)
