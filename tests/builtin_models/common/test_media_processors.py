"""The media processor of each family of vision-language models passes the conformance test."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_plug.testing import check_media_processor
from tests.e2e.vision_families import FAMILIES
from tests.e2e.vision_models import png, write_processor


@pytest.mark.parametrize("family", FAMILIES)
def test_processors_pass(family: str, tmp_path: Path) -> None:
    tokenizer, _ = write_processor(family, tmp_path)
    marks = tokenizer(FAMILIES[family].in_text, add_special_tokens=False)["input_ids"]
    placeholder = marks[len(marks) // 2]  # some families surround it with a start and an end
    check_media_processor(FAMILIES[family].processor, tmp_path, [png(40, 30, 1), png(30, 50, 2)], placeholder)
