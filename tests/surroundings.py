"""Isolation of tests from the caller's environment and from the tests that ran before."""

from __future__ import annotations

import os
import random

import torch

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "ws_proxy", "wss_proxy")
OURS = "SGLANG_PLUG_"
KEPT = {"SGLANG_PLUG_WRITE_DECIDED"}
"""Variables that configure the tests instead of the server."""
SEED = 7


def is_foreign(name: str) -> bool:
    """Return True for options of the server, and for proxies between it and its clients."""
    return name.lower() in PROXIES or (name.startswith(OURS) and name not in KEPT)


def clear_server_environment() -> None:
    """Remove the server's options and proxies from the environment."""
    for name in list(filter(is_foreign, os.environ)):
        del os.environ[name]


def seed() -> None:
    """Seed the random generators, so that tests do not depend on the tests before.

    ``torch.manual_seed`` also keeps a call for devices that are not there, with its stack, which takes much longer.
    """
    random.seed(SEED)
    torch.default_generator.manual_seed(SEED)
