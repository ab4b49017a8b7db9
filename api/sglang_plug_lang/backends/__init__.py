"""Backends that run programs: a server over HTTP, an engine in this process, or an OpenAI-compatible API."""

from __future__ import annotations
