"""The parts of ``benchmarks.gpu``. Each runs in a process of its own and returns plain data, or raises."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.load import Load, prompts
from benchmarks.models import SHAPES, write_model
from benchmarks.offline import Choice, throughput
from benchmarks.probe import probe
from sglang_plug import EngineConfig, Plugins, Request, SamplingParams
from sglang_plug.config import BackendOptions, CacheOptions, ModelOptions
from sglang_plug.engine.thread import ThreadClient
from sglang_plug.testing import check_attention_backend

LOADS: Mapping[str, Sequence[tuple[int, int, int]]] = {
    "tiny": ((1, 16, 8), (4, 16, 8)),
    "llama-1B": ((1, 128, 128), (32, 128, 128), (128, 512, 128)),
    "llama-8B": ((1, 128, 128), (32, 128, 128), (128, 512, 128)),
}
"""Shape -> requests at once, tokens in, tokens out."""
PARITY_TOKENS = 24
PARITY_PROMPTS = (1, 7, 20, 41, 44, 45)
"""Tokens of each prompt; they begin alike, so that the longer ones meet the prefix cache."""


def environment(device: str) -> dict[str, Any]:
    """Versions, the device, and which backends can be used."""
    plugins = Plugins.discover()
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "backends": {one.spec.name: one.unavailable() or "available" for one in plugins.all("attention")},
        "plugin_failures": [str(failure) for failure in plugins.failures],
    }
    if device.startswith("cuda"):
        found["device"] = torch.cuda.get_device_name()
        found["capability"] = torch.cuda.get_device_capability()
        found["free_bytes"], found["total_bytes"] = torch.cuda.mem_get_info()
    return found


def limits(device: str) -> Any:
    """Bandwidth and matmul rate."""
    cuda = device.startswith("cuda")
    return probe(device, gibibytes=4.0 if cuda else 0.25, rounds=5 if cuda else 1)


def conformance(device: str, backend: str, dtype: str) -> str:
    """The conformance kit; raises ``AssertionError`` if the backend fails it."""
    check_attention_backend(backend, device=device, dtype=getattr(torch, dtype))
    return "passed"


def parity(device: str, backend: str) -> dict[str, Any]:
    """Greedy tokens of a tiny random model in float32 against transformers; raises at the first difference."""
    shape = SHAPES["tiny"]
    tokens = prompts(Load(url="", requests=1, input_len=max(PARITY_PROMPTS), vocabulary=shape.vocabulary))[0]
    wanted = [tokens[:length] for length in PARITY_PROMPTS]
    with tempfile.TemporaryDirectory() as name:
        folder = write_model(shape, Path(name))
        expected = _reference(folder, device, wanted)
        config = EngineConfig(
            model=ModelOptions(path=str(folder), device=device, dtype="float32"),
            cache=CacheOptions(max_total_tokens=4096),
            backends=BackendOptions(attention=backend),
        )
        found = asyncio.run(_served(config, wanted))
    wrong = [index for index, (mine, theirs) in enumerate(zip(found, expected, strict=True)) if mine != theirs]
    if wrong:
        raise AssertionError(f"prompts {wrong} differ; the first: {found[wrong[0]]} instead of {expected[wrong[0]]}")
    return {"prompts": len(wanted), "tokens": sum(map(len, found)), "equal": True}


@torch.inference_mode()
def _reference(folder: Path, device: str, wanted: Sequence[Sequence[int]]) -> list[list[int]]:
    """Transformers' greedy tokens of a random model, which is saved in ``folder``."""
    torch.manual_seed(7)
    config = AutoConfig.from_pretrained(folder)
    config.initializer_range = 0.2  # wide enough for outputs that differ from one prompt to the next
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    model.save_pretrained(folder)
    model.to(device)
    rows = []
    for tokens in wanted:
        row = list(tokens)
        for _ in range(PARITY_TOKENS):
            row.append(int(model(torch.tensor([row], device=device)).logits[0, -1].argmax()))
        rows.append(row[len(tokens) :])
    return rows


async def _served(config: EngineConfig, wanted: Sequence[Sequence[int]]) -> list[list[int]]:
    client = ThreadClient(config, Plugins.discover())
    await client.start()
    params = SamplingParams(max_new_tokens=PARITY_TOKENS, temperature=0.0)

    async def one(index: int, tokens: Sequence[int]) -> list[int]:
        found: list[int] = []
        async for output in client.submit(Request(id=str(index), tokens=tuple(tokens), params=params)):
            found += output.tokens
        return found

    try:
        return await asyncio.gather(*(one(index, tokens) for index, tokens in enumerate(wanted)))
    finally:
        await client.close()


def speed(device: str, shape: str, backend: str) -> dict[str, Any]:
    """Throughput of a shape with random weights, for each of its loads."""
    sizes = LOADS[shape]
    loads = [
        Load(
            url="",
            requests=count,
            input_len=prompt,
            output_len=output,
            vocabulary=SHAPES[shape].vocabulary,
            seed=index,
        )
        for index, (count, prompt, output) in enumerate(sizes)
    ]
    choice = Choice(
        shape=SHAPES[shape],
        device=device,
        attention=backend,
        running=max(size[0] for size in sizes),
        max_total_tokens=2 * max(count * (prompt + output) for count, prompt, output in sizes),
    )
    found = asyncio.run(throughput(choice, loads))
    return {
        f"{count} at once, {prompt} in, {output} out": one
        for (count, prompt, output), one in zip(sizes, found, strict=True)
    }


PARTS: Mapping[str, Callable[..., Any]] = {
    "environment": environment,
    "limits": limits,
    "conformance": conformance,
    "parity": parity,
    "speed": speed,
}
