"""Names of SGLang's that are elsewhere here."""

from __future__ import annotations

from sglang_plug_lang import utils
from sglang_plug_lang.srt.utils import is_hip, load_image


def test_images_are_loaded_by_the_same_function() -> None:
    assert load_image is utils.load_image


def test_programs_run_as_on_other_devices_than_amd() -> None:
    assert is_hip() is False
