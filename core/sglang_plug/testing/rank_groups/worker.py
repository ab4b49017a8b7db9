"""A worker that runs what the conformance test of executors sends."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from sglang_plug.contracts.serving.executor import RankEndpoint

from .collectives import check_collectives

CHECK, REPORT, FAIL, END = b"check", b"report", b"fail", b"end"
"""Commands; other messages are data."""


class ToldToFail(Exception):
    """The failure that the test waits for."""


@dataclass(frozen=True, slots=True)
class WorkerLaunch:
    """The input with which the process of a worker is started; the plugins are those that are installed."""

    rank: int
    size: int
    device: str
    rendezvous: str
    executor: str
    folder: str


def follow(rank: int, size: int, endpoint: RankEndpoint, device: torch.device, folder: Path) -> None:
    """Handle messages until the end; leave reports in ``folder``."""
    (folder / f"{rank}.process").write_text(str(os.getpid()))
    digest, collectives = hashlib.sha256(), endpoint.collectives
    try:
        assert (collectives.rank, collectives.size) == (rank, size), (
            f"rank {rank} of {size} has the collectives of rank {collectives.rank} of {collectives.size}"
        )
        while (message := endpoint.receive()) != END:
            if message == CHECK:
                check_collectives(collectives, device)
            elif message == REPORT:
                _write(folder / f"{rank}.messages", digest.hexdigest())
            elif message == FAIL:
                if rank == 1:
                    raise ToldToFail
            else:
                digest.update(b"%d:" % len(message) + message)
    except EOFError:
        pass
    except ToldToFail:
        raise
    except Exception as error:
        if isinstance(error, AssertionError):
            _write(folder / f"{rank}.error", str(error))
        else:  # perhaps because another rank has failed
            _write(folder / f"{rank}.failure", f"rank {rank} fails: {type(error).__name__}: {error}")
        raise


def _write(file: Path, text: str) -> None:
    """Write a file that is there with its whole content, or not at all."""
    part = file.with_suffix(".part")
    part.write_text(text)
    part.replace(file)
