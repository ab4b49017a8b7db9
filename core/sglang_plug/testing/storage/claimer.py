"""A process that claims lines of a batch and stores results until it is killed; started as a script."""

from __future__ import annotations

import asyncio
import importlib
import sys
from pathlib import Path

from sglang_plug import LineResult, StoreContext

SECONDS = 1.0
"""Duration of the claims."""
TOGETHER = 8


async def claim_lines(target: str, folder: str, batch: str) -> None:
    """Claim some lines at a time, store results of half of them, and print their numbers."""
    module, _, name = target.partition(":")
    store = getattr(importlib.import_module(module), name)(Path(folder), StoreContext())
    for start in range(1, 200, TOGETHER):
        lines = sorted(await store.claim(batch, range(start, start + TOGETHER), "killed", SECONDS))
        results = [LineResult(line=line, succeeded=True, payload=b"{}") for line in lines[::2]]
        await store.add_results(batch, results, "killed")
        for line in lines[::2]:
            print(line, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(claim_lines(*sys.argv[1:]))
