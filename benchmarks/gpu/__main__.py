"""Command line of ``benchmarks.gpu``."""

from __future__ import annotations

from .run import main

if __name__ == "__main__":
    raise SystemExit(main())
