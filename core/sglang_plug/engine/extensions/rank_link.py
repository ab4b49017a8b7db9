"""The connection between the parts of a step extension on the ranks that share a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from sglang_plug.contracts.serving.executor import Collectives
from sglang_plug.engine.tensor_parallel.rank_messages import agreed

SendCommand = Callable[[str, bytes], None]
"""Sends the extension of a name a command on every worker rank."""


@dataclass(frozen=True, slots=True)
class RankLink:
    """The ranks as one extension sees them. An ``ExtensionRanks``."""

    name: str
    """The extension's."""
    collectives: Collectives
    device: torch.device
    command: SendCommand

    @property
    def rank(self) -> int:
        """Number of this rank."""
        return self.collectives.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.collectives.size

    def send(self, command: bytes) -> None:
        """Let every worker rank follow ``command``."""
        self.command(self.name, command)

    def agreed(self, done: bool) -> bool:
        """Return True if ``done`` is true on every rank."""
        return done if self.size == 1 else agreed(done, self.collectives, self.device)


def send_nothing(name: str, command: bytes) -> None:
    """Send a command to nobody: there is only one rank."""
