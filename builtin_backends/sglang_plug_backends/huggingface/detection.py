"""Recognition of checkpoints in the Hugging Face layout, by names alone."""

from __future__ import annotations

import os

from sglang_plug import CheckpointRequest


def detect_checkpoint(request: CheckpointRequest) -> bool:
    """Report whether the source is a folder with a ``config.json``, or something on the hub."""
    source = os.path.expanduser(request.source)
    if os.path.isdir(source):
        return os.path.isfile(os.path.join(source, "config.json"))
    return not os.path.exists(source) and not source.startswith((".", os.sep)) and source.count("/") <= 1
