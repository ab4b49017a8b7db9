"""Throughput in process, without HTTP: the engine in a thread, random weights, prompts all at once.

Run as ``python -m benchmarks.offline``.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.models import SHAPES, Shape, write_model
from benchmarks.common.report import Summary, parser, table, write_json
from benchmarks.load import Load, Reply, figures, prompts
from sglang_plug import EngineClient, EngineConfig, Plugins, Request, SamplingParams, StepStats
from sglang_plug.clients.thread_client import ThreadClient
from sglang_plug.config import AUTO, BackendOptions, CacheOptions, ModelOptions, ScheduleOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Results of one batch of requests. Times in seconds."""

    components: dict[str, str]
    requests: int
    failures: int
    errors: tuple[str, ...]
    seconds: float
    output_rate: float
    """Output tokens per second of the whole run, prefill included."""
    decode_rate: float
    """Output tokens per second while no prompt was being computed."""
    prefill_rate: float
    """Prompt tokens per second of the steps that only compute prompts."""
    first_token: Summary
    decode_step: Summary
    """Seconds of steps in which every request was decoding."""
    prefill_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Settings of the engine."""

    shape: Shape
    device: str = AUTO
    attention: str = AUTO
    kernels: str = AUTO
    dtype: str = "bfloat16"
    max_total_tokens: int | None = None
    chunk: int = 0
    running: int | None = None
    prefix_cache: str = AUTO
    kv_dtype: str = AUTO
    disable_cuda_graph: bool = False
    piecewise: int = 0
    """Maximum tokens of a step captured as a piecewise graph."""

    def config(self, folder: Path) -> EngineConfig:
        """Build the engine's configuration; writes the model's ``config.json`` into ``folder``."""
        path = write_model(self.shape, folder)
        return EngineConfig(
            model=ModelOptions(path=str(path), load_format="dummy", dtype=self.dtype, device=self.device),
            cache=CacheOptions(
                max_total_tokens=self.max_total_tokens, prefix_cache=self.prefix_cache, kv_dtype=self.kv_dtype
            ),
            schedule=ScheduleOptions(chunked_prefill_size=self.chunk, max_running_requests=self.running),
            backends=BackendOptions(
                attention=self.attention,
                kernels=self.kernels,
                disable_cuda_graph=self.disable_cuda_graph,
                piecewise_cuda_graph_max_tokens=self.piecewise,
            ),
            log_level="warning",
        )


async def throughput(choice: Choice, loads: list[Load]) -> list[Throughput]:
    """Build one engine and run each of ``loads`` on it."""
    with tempfile.TemporaryDirectory() as folder:
        config = choice.config(Path(folder))
        client = ThreadClient(config, Plugins.discover(config.plugins))
        info = await client.start()
        try:
            steps: list[StepStats] = []
            client.on_step(steps.append)
            results = []
            for load in loads:
                # the first run compiles kernels for new shapes, the second one is measured
                await _run(client, dataclasses.replace(load, seed=load.seed + 1000, output_len=4), steps, info)
                results.append(await _run(client, load, steps, info))
            return results
        finally:
            await client.close()


async def _run(client: EngineClient, load: Load, steps: list[StepStats], info: Mapping[str, Any]) -> Throughput:
    async def generate(number: int, tokens: list[int]) -> Reply:
        reply = Reply(time.perf_counter(), prompt_tokens=len(tokens))
        params = SamplingParams(max_new_tokens=load.output_len, temperature=0.0)
        async for output in client.submit(
            Request(id=f"{load.seed}-{number}", tokens=tuple(tokens), params=params, arrived=time.time())
        ):
            if output.tokens:
                reply.arrive(len(reply.times) + len(output.tokens), time.perf_counter())
            if output.finish is not None and output.finish.reason == "error":
                reply.error = output.finish.message
        reply.finished = time.perf_counter()
        if not reply.error and len(reply.times) != load.output_len:
            reply.error = f"{len(reply.times)} tokens instead of {load.output_len}"
        return reply

    requested = prompts(load)
    steps.clear()
    started = time.perf_counter()
    replies = await asyncio.gather(*(generate(number, tokens) for number, tokens in enumerate(requested)))
    await client.control("flush_cache")
    result = figures(replies, started)
    decoding = [step for step in steps if step.decode_sequences and not step.prefill_tokens]
    prefilling = [step for step in steps if step.prefill_tokens and not step.decode_sequences]
    full = [step.seconds for step in decoding if step.decode_sequences == load.requests]
    return Throughput(
        components={kind: component["name"] for kind, component in info["components"].items()},
        requests=result.requests,
        failures=result.failures,
        errors=result.errors,
        seconds=result.seconds,
        output_rate=result.output_rate,
        decode_rate=_rate(sum(step.decode_sequences for step in decoding), decoding),
        prefill_rate=_rate(sum(step.prefill_tokens for step in prefilling), prefilling),
        first_token=result.first_token,
        decode_step=Summary.of(full),
        prefill_steps=len(prefilling),
    )


def _rate(tokens: int, steps: list[StepStats]) -> float:
    seconds = sum(step.seconds for step in steps)
    return tokens / seconds if seconds else 0.0


def show(results: Mapping[str, Throughput]) -> str:
    """Format one line for each run."""
    header = ("run", "output tok/s", "decode tok/s", "prefill tok/s", "first token s", "decode step ms", "failed")
    rows = [
        (
            name,
            result.output_rate,
            result.decode_rate,
            result.prefill_rate,
            result.first_token.p50,
            result.decode_step.p50 * 1e3,
            str(result.failures),
        )
        for name, result in results.items()
    ]
    errors = [f"{name} failed: {text}" for name, result in results.items() for text in result.errors]
    return "\n".join((table(header, rows), *errors))


def arguments(options: argparse.ArgumentParser) -> None:
    """Define the options of a run."""
    options.add_argument("--shape", choices=sorted(SHAPES), default="0.5B")
    options.add_argument("--requests", type=int, nargs="+", default=[1, 32], help="at once; one run for each number")
    options.add_argument("--input-len", type=int, default=128)
    options.add_argument("--output-len", type=int, default=64)
    options.add_argument("--shared-prefix-len", type=int, default=0)
    options.add_argument("--device", default=AUTO)
    options.add_argument("--dtype", default="bfloat16")
    options.add_argument("--attention-backend", default=AUTO)
    options.add_argument("--kernels", default=AUTO)
    options.add_argument("--chunked-prefill-size", type=int, default=0)
    options.add_argument("--max-total-tokens", type=int)


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    arguments(options)
    args = options.parse_args()
    shape = SHAPES[args.shape]
    choice = Choice(
        shape=shape,
        device=args.device,
        attention=args.attention_backend,
        kernels=args.kernels,
        dtype=args.dtype,
        max_total_tokens=args.max_total_tokens,
        chunk=args.chunked_prefill_size,
        running=max(args.requests),
    )
    loads = [
        Load(
            url="",
            requests=count,
            input_len=args.input_len,
            output_len=args.output_len,
            shared_prefix_len=args.shared_prefix_len,
            vocabulary=shape.vocabulary,
        )
        for count in args.requests
    ]
    results = asyncio.run(throughput(choice, loads))
    collected = {f"{shape.name}, {result.requests} at once": result for result in results}
    print(show(collected))
    print(", ".join(f"{kind} {name}" for kind, name in results[0].components.items()))
    write_json(args.json, collected)


if __name__ == "__main__":
    main()
