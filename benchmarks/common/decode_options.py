"""Options of benchmarks that decode several requests at once, and their evaluation."""

from __future__ import annotations

import argparse

from benchmarks.common.models import SHAPES
from benchmarks.load import Load
from benchmarks.offline import Choice
from sglang_plug.config import AUTO


def add_options(options: argparse.ArgumentParser, *, requests: int, output_len: int) -> None:
    """Add options for the shape, the sizes of a run and the engine, with the given defaults."""
    options.add_argument("--shape", choices=sorted(SHAPES), default="0.5B")
    options.add_argument("--requests", type=int, default=requests, help="at once")
    options.add_argument("--input-len", type=int, default=128)
    options.add_argument("--output-len", type=int, default=output_len)
    options.add_argument("--device", default=AUTO)
    options.add_argument("--dtype", default="bfloat16")
    options.add_argument("--attention-backend", default=AUTO)
    options.add_argument("--kernels", default=AUTO)


def choice_of(args: argparse.Namespace) -> Choice:
    """Return the engine's setting; its pool holds the requests of two runs."""
    return Choice(
        shape=SHAPES[args.shape],
        device=args.device,
        dtype=args.dtype,
        attention=args.attention_backend,
        kernels=args.kernels,
        max_total_tokens=2 * args.requests * (args.input_len + args.output_len + 32),
        running=args.requests,
    )


def load_of(args: argparse.Namespace) -> Load:
    """Return the requests of a run."""
    return Load(
        url="",
        requests=args.requests,
        input_len=args.input_len,
        output_len=args.output_len,
        vocabulary=SHAPES[args.shape].vocabulary,
    )
