"""Tests of images from files, addresses, data and objects."""

from __future__ import annotations

import base64
import struct
from pathlib import Path
from typing import Any

import pytest

from sglang_plug_lang import load_image
from sglang_plug_lang.images import image_data

PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 640, 480)
GIF = b"GIF89a" + struct.pack("<HH", 3, 5)
JPEG = b"\xff\xd8" + b"\xff\xe0" + struct.pack(">H", 4) + b"ab" + b"\xff\xc2" + struct.pack(">HBHH", 9, 8, 7, 11)


@pytest.mark.parametrize(
    ("data", "size"),
    [(PNG, (640, 480)), (GIF, (3, 5)), (JPEG, (11, 7)), (PNG[:18], None), (JPEG[:8], None), (b"text", None)],
)
def test_sizes(data: bytes, size: tuple[int, int] | None) -> None:
    assert load_image(data) == (data, size)


def test_sources(tmp_path: Path, answering: Any) -> None:
    file = tmp_path / "image.gif"
    file.write_bytes(GIF)
    encoded = base64.b64encode(GIF).decode()
    answering.answers["/image.gif"] = (200, GIF.decode("latin-1"))
    for source in (file, str(file), f"data:image/gif;base64,{encoded}", answering.url + "/image.gif"):
        assert load_image(source) == (GIF, (3, 5))


def test_what_requests_carry(tmp_path: Path) -> None:
    file = tmp_path / "image.gif"
    file.write_bytes(GIF)
    assert image_data(GIF) == image_data(file) == base64.b64encode(GIF).decode()
    assert image_data("https://example.com/a.png") == "https://example.com/a.png"
    assert image_data("data:image/png;base64,YQ==") == "data:image/png;base64,YQ=="


def test_nothing_there(tmp_path: Path, answering: Any) -> None:
    for source in (tmp_path / "none", answering.url + "/none", "data:image/png;base64,?"):
        with pytest.raises(OSError, match="nothing could be loaded|No such file|not base64"):
            load_image(source)
