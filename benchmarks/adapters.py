"""Cost of adapters in a decode step: disabled, unused, and used by some or all requests.

Run as ``python -m benchmarks.adapters``. Random weights, and LoRA adapters of random numbers for every matrix of the
layers. Each kind of batch is also run with adapters applied one after the other (``apart``), like formats that cannot
be joined.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import torch
from safetensors.torch import save_file

from benchmarks.common.decode_options import add_options, choice_of, load_of
from benchmarks.common.engine_driver import ListInbox, decode_seconds, nobody
from benchmarks.common.report import parser, table, write_json
from benchmarks.load import Load, prompts
from benchmarks.offline import Choice
from sglang_plug import Output, Plugins, Request, SamplingParams
from sglang_plug.clients.pending import merge
from sglang_plug.config import AdapterOptions
from sglang_plug.contracts.model.adapters import AdaptableLayer
from sglang_plug.engine.loop import EngineLoop
from sglang_plug.engine.messages.api_messages import Control, FromEngine, Reply, StepOutputs
from sglang_plug.engine.startup.build import build_engine
from sglang_plug.engine.watchdog import Heartbeat
from sglang_plug_backends.lora import lora_batch as adapted
from sglang_plug_backends.lora.lora_layers import adaptable_layers, described


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Median seconds of a decode step."""

    kind: str
    adapters: int
    step: float
    apart: float | None = None


class Bench:
    """An engine with adapters, or without."""

    def __init__(self, choice: Choice, folder: Path, *, adapters: int = 0, rank: int = 16, size: float = 0.02) -> None:
        config = choice.config(folder)
        options = AdapterOptions(enabled=adapters > 0, max_per_batch=max(1, adapters))
        self.inbox, self._runs = ListInbox(), 0
        self.names = [f"adapter-{number}" for number in range(adapters)]
        self._outputs: dict[str, Output] = {}
        self._error: str | None = None
        config = dataclasses.replace(config, adapters=options)
        self.loop: EngineLoop = build_engine(config, Plugins.discover(), self.inbox, self._hear, Heartbeat())
        model = self.loop.runner.components.model
        for seed, name in enumerate(self.names):
            write_adapter(folder / name, described(model, adaptable_layers(model)), rank, size=size, seed=seed)
            self.loop.handle(Control(seed, "load_adapter", {"adapter": name, "path": str(folder / name)}))
            if self._error is not None:
                raise RuntimeError(self._error)

    def finish(self) -> dict[str, Output]:
        """Serve the submitted requests and return the outputs by id."""
        while self.inbox.messages or self.loop.busy:
            self.loop.step()
        return self._outputs

    def _hear(self, message: FromEngine) -> None:
        nobody(message)
        if isinstance(message, Reply):
            self._error = message.error
        for output in message.outputs if isinstance(message, StepOutputs) else ():
            before = self._outputs.get(output.id)
            self._outputs[output.id] = output if before is None else merge(before, output)

    def step(self, load: Load, names: Sequence[str | None]) -> float:
        """Return the median of a decode step of requests with ``names``, which are repeated."""
        self._runs += 1
        params = SamplingParams(max_new_tokens=load.output_len, temperature=0.0)
        requests = [
            Request(
                id=f"{self._runs}-{number}",
                tokens=tuple(tokens),
                params=params,
                adapter=names[number % len(names)],
            )
            for number, tokens in enumerate(prompts(load))
        ]
        return statistics.median(decode_seconds(self.loop, self.inbox, requests, load.output_len // 2))


def write_adapter(path: Path, layers: Sequence[AdaptableLayer], rank: int, *, size: float, seed: int) -> None:
    """Write a PEFT LoRA adapter of random numbers for every matrix of ``layers``."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in layers:
        parts = {name: part for name, part in layer.parts.items() if name != layer.name} or layer.parts
        for name, columns in parts.items():
            shapes = {"A": (rank, layer.size_in), "B": (columns.stop - columns.start, rank)}
            for side, shape in shapes.items():
                numbers = torch.randn(shape, generator=generator) * size
                tensors[f"base_model.model.{name}.lora_{side}.weight"] = numbers.bfloat16()
    path.mkdir()
    save_file(tensors, path / "adapter_model.safetensors")
    stored = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank}
    (path / "adapter_config.json").write_text(json.dumps(stored), encoding="utf-8")


@contextmanager
def apart() -> Iterator[None]:
    """Apply adapters one after the other."""
    with patch.object(adapted, "_joins", lambda layer, step: False):
        yield


def measure(choice: Choice, load: Load, *, adapters: int, rank: int) -> list[Result]:
    """Measure each kind of batch."""
    with tempfile.TemporaryDirectory() as plain, tempfile.TemporaryDirectory() as folder:
        results = [Result(kind="not enabled", adapters=0, step=Bench(choice, Path(plain)).step(load, [None]))]
        bench = Bench(choice, Path(folder), adapters=adapters, rank=rank)
        results.append(Result(kind="not used", adapters=0, step=bench.step(load, [None])))
        names = bench.names
        kinds: dict[str, list[str | None]] = {
            "all the same": [names[0]],
            "every other": [names[0], None],
            "mixed": [*names],
        }
        for kind, row_adapters in kinds.items():
            step = bench.step(load, row_adapters)
            with apart():
                other = bench.step(load, row_adapters)
            results.append(Result(kind=kind, adapters=len(set(row_adapters) - {None}), step=step, apart=other))
    return results


def show(results: Sequence[Result]) -> str:
    """Format as a table."""
    rows = [
        (
            result.kind,
            result.adapters,
            f"{result.step * 1e3:.2f}",
            "" if result.apart is None else f"{result.apart * 1e3:.2f}",
        )
        for result in results
    ]
    return table(("requests", "adapters", "ms for a step", "apart"), rows)


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    add_options(options, requests=8, output_len=64)
    options.add_argument("--adapters", type=int, default=8)
    options.add_argument("--rank", type=int, default=16)
    args = options.parse_args()
    result = measure(choice_of(args), load_of(args), adapters=args.adapters, rank=args.rank)
    print(show(result))
    write_json(args.json, result)


if __name__ == "__main__":
    main()
