"""What tests must not depend on: the caller's environment, and which tests ran before."""

from __future__ import annotations

import os
import random

import torch

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "ws_proxy", "wss_proxy")
OURS = "SGLANG_PLUG_"
KEPT = {"SGLANG_PLUG_WRITE_DECIDED"}
"""Said to the tests, not to the program."""
SEED = 7


def is_foreign(name: str) -> bool:
    """True for options of the server, and for proxies between it and its clients."""
    return name.lower() in PROXIES or (name.startswith(OURS) and name not in KEPT)


def forget_the_callers_options() -> None:
    """Take variables that tests know nothing of from the environment."""
    for name in list(filter(is_foreign, os.environ)):
        del os.environ[name]


def seed() -> None:
    """Make random numbers independent of the tests that ran before.

    ``torch.manual_seed`` also keeps a call for devices that are not there, with its stack, which takes much longer.
    """
    random.seed(SEED)
    torch.default_generator.manual_seed(SEED)
