"""Images as a program has them: files and pictures in memory besides what a request may carry."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from .errors import SHOWN, ApiError

FILE_NAME = re.compile(r"[^\n]{0,4095}\.[A-Za-z0-9]{2,5}")
"""A name with an ending; base64 has no dot."""
ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


@runtime_checkable
class Picture(Protocol):
    """What Pillow's images have of use here."""

    mode: str

    def save(self, fp: Any, format: str) -> None:
        """Write it to a file."""


def carried(given: Any) -> Any:
    """``image_data`` as ``/generate`` takes it: files are read, pictures become files; the rest stays as it is.

    Raises ``ApiError`` for a file that cannot be read.
    """
    if isinstance(given, list | tuple):
        return [carried(one) for one in given]
    if isinstance(given, Picture):
        file = io.BytesIO()
        given.save(file, "PNG" if given.mode in PNG_MODES else "TIFF")
        return file.getvalue()
    if isinstance(given, os.PathLike) or (isinstance(given, str) and _is_file_name(given)):
        try:
            return Path(given).read_bytes()
        except OSError as error:
            raise ApiError(f"image_data: {str(given)[:SHOWN]!r} cannot be read: {error}", param="image_data") from None
    return given


def _is_file_name(text: str) -> bool:
    return FILE_NAME.fullmatch(text) is not None and ADDRESS.match(text) is None
