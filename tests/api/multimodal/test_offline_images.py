"""Files and image objects become image data of a request."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.multimodal.offline_images import load_offline_images

BODY = b"what the file holds"


@pytest.mark.parametrize(
    "images",
    [None, "", "YQ==", base64.b64encode(BODY).decode(), BODY, "data:image/png;base64,YQ==", "http://a.test/a.png", 5]
    + ["file:///a.png", "https://a.test/a.png"],
)
def test_what_a_request_takes_stays(images: Any) -> None:
    assert load_offline_images(images) == images


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a b.png").write_bytes(BODY)
    (tmp_path / "plain").write_bytes(BODY)
    monkeypatch.chdir(tmp_path)
    images = [tmp_path / "plain", str(tmp_path / "a b.png"), ("a b.png", None)]
    assert load_offline_images(images) == [BODY, BODY, [BODY, None]]
    for missing in ("none.png", tmp_path / "none"):
        with pytest.raises(ApiError, match="image_data: '.*none.*' cannot be read: .*No such file"):
            load_offline_images(missing)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1", "CMYK", "YCbCr", "F", "I;16"])
def test_pictures(mode: str) -> None:
    picture = Image.new(mode, (3, 2))
    expected = picture.convert("RGB") if mode == "YCbCr" else picture
    loaded = Image.open(io.BytesIO(load_offline_images(picture)))
    assert (loaded.mode, loaded.size, loaded.tobytes()) == (expected.mode, (3, 2), expected.tobytes())
