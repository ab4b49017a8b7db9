"""Execution of programs: the interpreter and its transcript, speculation and tracing."""

from __future__ import annotations
