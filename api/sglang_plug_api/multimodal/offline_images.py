"""Images that a program passes to the offline engine: files and Pillow images besides those that requests may have."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from sglang_plug_api.answers.errors import SHOWN, ApiError

FILE_NAME = re.compile(r"[^\n]{0,4095}\.[A-Za-z0-9]{2,5}")
"""Pattern of a file name with an extension; base64 has no dot."""
ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


@runtime_checkable
class PillowImage(Protocol):
    """The part of Pillow's ``Image`` that is used here."""

    mode: str

    def save(self, fp: Any, format: str) -> None:
        """Write the image to a file."""

    def convert(self, mode: str) -> PillowImage:
        """Return the same image in another mode."""


def load_offline_images(image_data: Any) -> Any:
    """Return ``image_data`` as ``/generate`` takes it: files are read, Pillow images encoded, the rest is unchanged.

    Raises ``ApiError`` for a file that cannot be read.
    """
    if isinstance(image_data, list | tuple):
        return [load_offline_images(image) for image in image_data]
    if isinstance(image_data, PillowImage):
        file = io.BytesIO()
        # Pillow 12 cannot read its own YCbCr TIFF
        image = image_data.convert("RGB") if image_data.mode == "YCbCr" else image_data
        image.save(file, "PNG" if image.mode in PNG_MODES else "TIFF")
        return file.getvalue()
    if isinstance(image_data, os.PathLike) or (isinstance(image_data, str) and _is_file_name(image_data)):
        try:
            return Path(image_data).read_bytes()
        except OSError as error:
            name = str(image_data)[:SHOWN]
            raise ApiError(f"image_data: {name!r} cannot be read: {error}", param="image_data") from None
    return image_data


def _is_file_name(text: str) -> bool:
    return FILE_NAME.fullmatch(text) is not None and ADDRESS.match(text) is None
