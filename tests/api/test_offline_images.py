"""Files and pictures become what a request carries."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from sglang_plug_api.errors import ApiError
from sglang_plug_api.offline_images import carried

BODY = b"what the file holds"


@pytest.mark.parametrize(
    "given",
    [None, "", "YQ==", base64.b64encode(BODY).decode(), BODY, "data:image/png;base64,YQ==", "http://a.test/a.png", 5]
    + ["file:///a.png", "https://a.test/a.png"],
)
def test_what_a_request_takes_stays(given: Any) -> None:
    assert carried(given) == given


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a b.png").write_bytes(BODY)
    (tmp_path / "plain").write_bytes(BODY)
    monkeypatch.chdir(tmp_path)
    assert carried([tmp_path / "plain", str(tmp_path / "a b.png"), ("a b.png", None)]) == [BODY, BODY, [BODY, None]]
    for missing in ("none.png", tmp_path / "none"):
        with pytest.raises(ApiError, match="image_data: '.*none.*' cannot be read: .*No such file"):
            carried(missing)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1", "CMYK", "YCbCr", "F", "I;16"])
def test_pictures(mode: str) -> None:
    picture = Image.new(mode, (3, 2))
    found = Image.open(io.BytesIO(carried(picture)))
    assert (found.mode, found.size, found.tobytes()) == (mode, (3, 2), picture.tobytes())
