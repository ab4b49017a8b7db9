"""The options of benchmarks that decode a number of requests at once, and what follows from them."""

from __future__ import annotations

import argparse

from benchmarks.load import Load
from benchmarks.models import SHAPES
from benchmarks.offline import Choice
from sglang_plug.config import AUTO


def add_options(options: argparse.ArgumentParser, *, requests: int, output_len: int) -> None:
    """Shape, sizes of a run and how the engine is set up, with these defaults."""
    options.add_argument("--shape", choices=sorted(SHAPES), default="0.5B")
    options.add_argument("--requests", type=int, default=requests, help="at once")
    options.add_argument("--input-len", type=int, default=128)
    options.add_argument("--output-len", type=int, default=output_len)
    options.add_argument("--device", default=AUTO)
    options.add_argument("--dtype", default="bfloat16")
    options.add_argument("--attention-backend", default=AUTO)
    options.add_argument("--kernels", default=AUTO)


def choice_of(given: argparse.Namespace) -> Choice:
    """The engine's setting; its pool holds the requests of two runs."""
    return Choice(
        shape=SHAPES[given.shape],
        device=given.device,
        dtype=given.dtype,
        attention=given.attention_backend,
        kernels=given.kernels,
        max_total_tokens=2 * given.requests * (given.input_len + given.output_len + 32),
        running=given.requests,
    )


def load_of(given: argparse.Namespace) -> Load:
    """The requests."""
    return Load(
        url="",
        requests=given.requests,
        input_len=given.input_len,
        output_len=given.output_len,
        vocabulary=SHAPES[given.shape].vocabulary,
    )
