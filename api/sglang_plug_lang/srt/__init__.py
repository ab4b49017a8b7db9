"""Where programs written for SGLang find ``load_image``."""

from __future__ import annotations
