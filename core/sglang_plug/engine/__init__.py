"""The engine. Private to core and to the API package: no plugin imports it."""

from __future__ import annotations
