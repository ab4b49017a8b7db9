"""Gain of a kernel set's recurrent kernels over their definitions in torch.

Run as ``python -m benchmarks.recurrent``. A Qwen3.5 with random weights is served by two engines that differ only in
these kernels and whose runs alternate. Requests come at once; a prompt's time is that of all prompts together.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.common.engine_driver import ListInbox, decode_seconds, nobody
from benchmarks.common.report import parser, table, write_json
from benchmarks.load import Load, prompts
from sglang_plug import EngineConfig, Kernels, KernelSpec, Plugins, Request, SamplingParams, hookimpl
from sglang_plug.config import AUTO, BackendOptions, CacheOptions, ModelOptions, PluginOptions, ScheduleOptions
from sglang_plug.engine.messages.api_messages import Submit
from sglang_plug.engine.startup.build import build_engine
from sglang_plug.engine.watchdog import Heartbeat
from sglang_plug.plugins.attribution import make_with_settings

SMALL: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "tie_word_embeddings": True,
    "max_position_embeddings": 32_768,
}
TINY = {**SMALL, "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "head_dim": 16}
SHAPES = {"small": SMALL, "tiny": TINY}
"""``small`` has some 0.75 billion parameters; ``tiny`` is for trying the script out."""
RECURRENT = ("causal_conv", "linear_attention", "gated_delta_rule", "selective_scan")
DEFINED = "defined"
"""Kernel set whose recurrent kernels are the definitions."""


def defined() -> Kernels:
    """Build the default kernel set without its recurrent kernels."""
    plugins = Plugins.discover()
    names = [name for name in ("avx512", "cpu") if name in plugins.names("kernels")]
    component = next(candidate for name in names if not (candidate := plugins.get("kernels", name)).unavailable())
    result = component.load()
    kernels = result if isinstance(result, Kernels) else make_with_settings(component, contract=Kernels)
    plain = Kernels()
    return replace(kernels, name=DEFINED, **{name: getattr(plain, name) for name in RECURRENT})


@hookimpl
def register_kernels() -> list[KernelSpec]:
    """Register this script as a plugin."""
    return [KernelSpec(name=DEFINED, target=f"{__name__}:defined")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Median seconds of the runs, with the definitions and with the kernel set's own kernels."""

    requests: int
    prompts_defined: float
    prompts_own: float
    step_defined: float
    step_own: float


class Bench:
    """An engine whose steps this script runs."""

    def __init__(self, folder: Path, kernels: str, running: int) -> None:
        config = EngineConfig(
            model=ModelOptions(path=str(folder), device="cpu", load_format="dummy", dtype="bfloat16"),
            cache=CacheOptions(max_total_tokens=32_768, max_states=2 * running, prefix_cache="none"),
            schedule=ScheduleOptions(max_running_requests=running),
            backends=BackendOptions(kernels=kernels, grammar="none"),
            plugins=PluginOptions(files=(__file__,) if kernels == DEFINED else ()),
        )
        self.inbox, self._runs = ListInbox(), 0
        self.loop = build_engine(config, Plugins.discover(config.plugins), self.inbox, nobody, Heartbeat())

    def run(self, load: Load) -> tuple[float, float]:
        """Return the seconds for all prompts and for a decode step."""
        return self._prompts(load), statistics.median(
            decode_seconds(self.loop, self.inbox, self._requests(load, load.output_len), load.output_len // 2)
        )

    def _prompts(self, load: Load) -> float:
        self.inbox.messages += [Submit(request) for request in self._requests(load, 1)]
        started = time.perf_counter()
        while self.inbox.messages or self.loop.busy:
            self.loop.step()
        return time.perf_counter() - started

    def _requests(self, load: Load, count: int) -> list[Request]:
        self._runs += 1
        params = SamplingParams(max_new_tokens=count, temperature=0.0)
        return [
            Request(id=f"{self._runs}-{number}", tokens=tuple(tokens), params=params)
            for number, tokens in enumerate(prompts(load))
        ]


def measure(config: dict[str, Any], crowds: Sequence[int], prompt: int, output: int, rounds: int) -> list[Result]:
    """Measure each number of requests ``rounds`` times, alternating between the kernels."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        benches = [Bench(folder, kernels, max(crowds)) for kernels in (DEFINED, AUTO)]
        results = []
        for crowd in crowds:
            load = Load(
                url="", requests=crowd, input_len=prompt, output_len=output, vocabulary=int(config["vocab_size"])
            )
            runs = [[bench.run(load) for bench in benches] for _ in range(rounds)]
            plain, own = (tuple(map(statistics.median, zip(*item, strict=True))) for item in zip(*runs, strict=True))
            results.append(
                Result(
                    requests=crowd,
                    prompts_defined=plain[0],
                    prompts_own=own[0],
                    step_defined=plain[1],
                    step_own=own[1],
                )
            )
    return results


def show(results: Sequence[Result]) -> str:
    """Format as a table."""
    rows = [
        (
            result.requests,
            f"{result.step_defined * 1e3:.1f}",
            f"{result.step_own * 1e3:.1f}",
            f"{result.step_defined / result.step_own:.2f}",
            f"{result.prompts_defined / result.prompts_own:.2f}",
        )
        for result in results
    ]
    return table(("requests", "ms a step, defined", "own", "times as fast", "prompts, times as fast"), rows)


def main() -> None:
    """Measure and print."""
    arguments = parser(__doc__)
    arguments.add_argument("--shape", choices=SHAPES, default="small")
    arguments.add_argument("--requests", type=int, nargs="+", default=[1, 8, 16])
    arguments.add_argument("--input-len", type=int, default=256)
    arguments.add_argument("--output-len", type=int, default=32)
    arguments.add_argument("--rounds", type=int, default=3)
    args: argparse.Namespace = arguments.parse_args()
    result = measure(SHAPES[args.shape], args.requests, args.input_len, args.output_len, args.rounds)
    print(show(result))
    write_json(args.json, result)


if __name__ == "__main__":
    main()
