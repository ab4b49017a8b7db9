"""``sglang-plug download``: fetches a model's files, so that a later start needs no network."""

from __future__ import annotations

import argparse
import os
import sys

from sglang_plug import Plugins
from sglang_plug.config import AUTO

NO_PROGRESS = "HF_HUB_DISABLE_PROGRESS_BARS"
"""Environment variable of the hub's library."""


class DownloadCommand:
    """The command, which fetches what ``serve`` would fetch, with the same checkpoint reader, and prints the folder."""

    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        """Add the model, its revision and the checkpoint reader."""
        readers = ", ".join((AUTO, *plugins.names("checkpoint")))
        parser.add_argument("model", metavar="MODEL", help="hub id, such as Qwen/Qwen3-0.6B")
        parser.add_argument("--revision", help="branch, tag or commit; default: the main branch")
        parser.add_argument(
            "--checkpoint-format", default=AUTO, metavar="FORMAT", help=f"reader of the checkpoint; one of: {readers}"
        )
        parser.add_argument("--config-only", action="store_true", help="leave the weights out")

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        """Download what is missing and print the folder. Raises ``CheckpointNotFoundError``, a ``ConfigError``."""
        if not sys.stderr.isatty():
            os.environ.setdefault(NO_PROGRESS, "1")  # before the library is imported, which reads it then
        from sglang_plug import Checkpoint, CheckpointRequest, Facts  # these import torch
        from sglang_plug.plugins.attribution import make

        reader = plugins.resolve("checkpoint", options.checkpoint_format, Facts())
        request = CheckpointRequest(source=options.model, revision=options.revision, weights=not options.config_only)
        print(f"Fetching {options.model}; files that are complete are not fetched again", file=sys.stderr, flush=True)
        checkpoint: Checkpoint = make(reader, request, contract=Checkpoint)
        print(checkpoint.path)
        return 0


command = DownloadCommand()
