"""The parts of ``benchmarks.gpu``. Each runs in a process of its own and returns plain data, or raises."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from benchmarks.common.models import SHAPES, Shape, write_model
from benchmarks.gpu.adapters import adapter_steps, adapters_are_right
from benchmarks.gpu.engine import decode_steps, overlap_changes_nothing
from benchmarks.gpu.flashinfer_build import modules
from benchmarks.gpu.kernels.ceilings import ceilings
from benchmarks.gpu.kernels.correctness import kernels
from benchmarks.gpu.kernels.layers import launches, layers
from benchmarks.gpu.kernels.moe import moe
from benchmarks.gpu.kernels.quantized import quantized_products, quantized_speed
from benchmarks.gpu.kernels.recurrent import recurrent, recurrent_speed
from benchmarks.gpu.kernels.sampling import sampling_is_right, sampling_speed
from benchmarks.gpu.kernels.single_row import rows
from benchmarks.gpu.kv_scales import enlarge
from benchmarks.gpu.memory import start_and_serve
from benchmarks.gpu.prompts import prompt_steps
from benchmarks.gpu.targets import CROWD, LONG_PROMPT, ONE_STREAM, name_of
from benchmarks.load import Load, prompts
from benchmarks.offline import Choice, Throughput, throughput
from sglang_plug import EngineConfig, Plugins, Request, SamplingParams
from sglang_plug.clients.thread_client import ThreadClient
from sglang_plug.config import BackendOptions, CacheOptions, ModelOptions, ScheduleOptions
from sglang_plug.testing import check_attention_backend
from sglang_plug.testing.model.attention_cases import Case

LOADS: Mapping[str, Sequence[tuple[int, int, int]]] = {
    "tiny": ((1, 16, 8), (4, 16, 8)),
    "llama-1B": (ONE_STREAM, CROWD),
    "llama-8B": (ONE_STREAM, CROWD, LONG_PROMPT),
}
"""Concurrent requests, tokens in and tokens out by shape."""
PREFIX_LOADS = {"tiny": (6, 40, 8, 4), "llama-8B": (256, 2048, 64, 32), "llama-1B": (256, 2048, 64, 32)}
"""Concurrent requests, common tokens, own tokens and tokens out by shape."""
MEMORY_LOADS = {"tiny": (4, 16, 8), "llama-8B": (256, 512, 8), "llama-1B": (256, 512, 8)}
CROWDS = {"tiny": (4, 16, 12), "llama-8B": CROWD, "llama-1B": CROWD}
NEAR_SHAPE = dataclasses.replace(SHAPES["tiny"], name="tiny-64", dim=64, heads=8, kv_heads=2)
"""Shape with a head dimension that every backend serves."""
NEAR, NEAR_FLOAT8 = 0.25, 1.0
"""Maximum distance of a bfloat16 token's logit below the best one, in standard deviations; for both kinds of pool.

The second value is for keys and values in float8.
"""
KV_DTYPES = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
SWITCH_SECONDS = 2e-4
"""Seconds after which the clients' thread yields Python's lock to the engine's.

Python's 5 ms are as long as a step, and a server has a process for each.
"""
PIECES = 64
"""Maximum tokens of a step captured in pieces for correctness checks: more than some prompts have."""
PARITY_TOKENS = 24
PARITY_PROMPTS = (1, 7, 20, 41, 44, 45)
"""Tokens of each prompt; they have a common prefix, so that the longer ones hit the prefix cache."""


def environment(device: str) -> dict[str, Any]:
    """Return versions, the device, and the usable backends."""
    plugins = Plugins.discover()
    results: dict[str, Any] = {
        "torch": torch.__version__,
        "backends": {item.spec.name: item.unavailable() or "available" for item in plugins.all("attention")},
        "plugin_failures": [str(failure) for failure in plugins.failures],
    }
    if device.startswith("cuda"):
        results["device"] = torch.cuda.get_device_name()
        results["capability"] = torch.cuda.get_device_capability()
        results["free_bytes"], results["total_bytes"] = torch.cuda.mem_get_info()
    return results


def conformance(device: str, backend: str, dtype: str, cases: str = "all", kv_dtype: str = "auto") -> str:
    """Run the conformance tests; raises ``AssertionError`` if the backend fails them.

    With ``cases="plain"`` without windows and caps, for which FlashInfer compiles separate kernels.
    """

    def is_plain(case: Case) -> bool:
        return all(layer.window is None and layer.softcap is None for layer in case.layers)

    only = is_plain if cases == "plain" else None
    pool = None if kv_dtype == "auto" else KV_DTYPES[kv_dtype]
    check_attention_backend(backend, device=device, dtype=getattr(torch, dtype), kv_dtype=pool, only=only)
    return "passed"


def parity(device: str, backend: str, graphs: str = "graphs") -> dict[str, Any]:
    """Compare greedy tokens of a tiny random float32 model with transformers; raises at the first difference."""
    requested = _parity_prompts(SHAPES["tiny"])
    with tempfile.TemporaryDirectory() as name:
        folder = write_model(SHAPES["tiny"], Path(name))
        model = random_model(folder, device)
        expected = [_greedy(model, tokens, device) for tokens in requested]
        result = asyncio.run(_served(_config(folder, device, "float32", backend, graphs), requested))
    wrong = [index for index, (mine, theirs) in enumerate(zip(result, expected, strict=True)) if mine != theirs]
    if wrong:
        raise AssertionError(f"prompts {wrong} differ; the first: {result[wrong[0]]} instead of {expected[wrong[0]]}")
    return {"prompts": len(requested), "tokens": sum(map(len, result)), "equal": True}


@torch.inference_mode()
def near(
    device: str,
    backend: str,
    graphs: str = "graphs",
    kv_dtype: str = "auto",
    *,
    rescale: Callable[[Path], None] = enlarge,
) -> dict[str, Any]:
    """Check greedy bfloat16 tokens: each must be (nearly) the best by transformers' float32 logits.

    For float8 ``rescale`` rewrites the checkpoint in a folder: with large keys and values, and their scales.
    """
    requested = _parity_prompts(NEAR_SHAPE)
    worst, equal, total = 0.0, 0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = write_model(NEAR_SHAPE, Path(name))
        model = random_model(folder, device)
        if kv_dtype in KV_DTYPES:
            rescale(folder)
        result = asyncio.run(_served(_config(folder, device, "bfloat16", backend, graphs, kv_dtype), requested))
        for prompt, tokens in zip(requested, result, strict=True):
            logits = model(torch.tensor([[*prompt, *tokens]], device=device)).logits[0, len(prompt) - 1 : -1]
            chosen = logits.gather(1, torch.tensor(tokens, device=device)[:, None])[:, 0]
            short = (logits.max(-1).values - chosen) / logits.std(-1)
            worst = max(worst, float(short.max()))
            equal, total = equal + int((short == 0).sum()), total + len(tokens)
    bound = NEAR_FLOAT8 if kv_dtype in KV_DTYPES else NEAR
    if not worst <= bound:
        raise AssertionError(f"a chosen token is {worst:.3f} standard deviations below the best one, more than {bound}")
    return {"tokens": total, "best": equal, "worst": worst}


def _parity_prompts(shape: Shape) -> list[list[int]]:
    tokens = prompts(Load(url="", requests=1, input_len=max(PARITY_PROMPTS), vocabulary=shape.vocabulary))[0]
    return [tokens[:length] for length in PARITY_PROMPTS]


def _config(folder: Path, device: str, dtype: str, backend: str, graphs: str, kv_dtype: str = "auto") -> EngineConfig:
    return EngineConfig(
        model=ModelOptions(path=str(folder), device=device, dtype=dtype),
        cache=CacheOptions(max_total_tokens=4096, kv_dtype=kv_dtype),
        schedule=ScheduleOptions(max_running_requests=8),
        backends=BackendOptions(
            attention=backend,
            disable_cuda_graph=graphs == "no-graphs",
            piecewise_cuda_graph_max_tokens=PIECES if graphs == "pieces" else 0,
        ),
    )


def random_model(folder: Path, device: str) -> Any:
    """Return transformers' random float32 model for the configuration in ``folder``, which is also saved there."""
    torch.manual_seed(7)
    config = AutoConfig.from_pretrained(folder)
    config.initializer_range = 0.2  # wide enough for outputs that differ from one prompt to the next
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    model.save_pretrained(folder)
    return model.to(device)


@torch.inference_mode()
def _greedy(model: Any, tokens: Sequence[int], device: str) -> list[int]:
    row = list(tokens)
    for _ in range(PARITY_TOKENS):
        row.append(int(model(torch.tensor([row], device=device)).logits[0, -1].argmax()))
    return row[len(tokens) :]


async def _served(config: EngineConfig, requested: Sequence[Sequence[int]]) -> list[list[int]]:
    client = ThreadClient(config, Plugins.discover())
    await client.start()
    params = SamplingParams(max_new_tokens=PARITY_TOKENS, temperature=0.0)

    async def generate(index: int, tokens: Sequence[int]) -> list[int]:
        results: list[int] = []
        async for output in client.submit(Request(id=str(index), tokens=tuple(tokens), params=params)):
            results += output.tokens
        return results

    try:
        return await asyncio.gather(*(generate(index, tokens) for index, tokens in enumerate(requested)))
    finally:
        await client.close()


def speed(device: str, shape: str, backend: str, kv_dtype: str = "auto") -> dict[str, Any]:
    """Measure the throughput of a shape with random weights for each of its loads."""
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
        kv_dtype=kv_dtype,
        running=max(size[0] for size in sizes),
        max_total_tokens=2 * max(count * (prompt + output) for count, prompt, output in sizes),
    )
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        result = asyncio.run(throughput(choice, loads))
    finally:
        sys.setswitchinterval(before)
    return {name_of(load): item for load, item in zip(sizes, result, strict=True)}


def prefix(device: str, shape: str, backend: str) -> dict[str, Any]:
    """Time requests with a long common prefix with and without the prefix cache."""
    count, shared, own, output = PREFIX_LOADS[shape]
    load = Load(
        url="",
        requests=count,
        input_len=own,
        output_len=output,
        shared_prefix_len=shared,
        vocabulary=SHAPES[shape].vocabulary,
    )

    def run(cache: str) -> Throughput:
        choice = Choice(
            shape=SHAPES[shape],
            device=device,
            attention=backend,
            running=count,
            prefix_cache=cache,
            max_total_tokens=count * (shared + own + output + 8),
        )
        return asyncio.run(throughput(choice, [load]))[0]

    kept, none = run("auto"), run("none")
    if kept.failures or none.failures:
        raise AssertionError(f"requests failed: {kept.errors} {none.errors}")
    return {"seconds": kept.seconds, "seconds_without": none.seconds, "speedup": none.seconds / kept.seconds}


def memory(device: str, shape: str, backend: str) -> dict[str, Any]:
    """Start with default options: weights, pool and graphs stay within their share, also while serving."""
    return start_and_serve(device, SHAPES[shape], backend, MEMORY_LOADS[shape])


def step(device: str, shape: str, backend: str) -> dict[str, Any]:
    """Measure the shares of device and host in a decode step under load."""
    return decode_steps(device, SHAPES[shape], backend, *CROWDS[shape])


def overlap(device: str, shape: str, backend: str, graphs: str = "graphs") -> dict[str, Any]:
    """Check that steps launched while the previous one is on the device change no output."""
    return overlap_changes_nothing(device, SHAPES[shape], backend, graphs=graphs == "graphs")


@torch.no_grad()
def reference(device: str, shape: str) -> dict[str, Any]:
    """Measure transformers' continuous batching on random weights of the same shape and load."""
    count, prompt, output = CROWDS[shape]
    requested = prompts(Load(url="", requests=count, input_len=prompt, vocabulary=SHAPES[shape].vocabulary))
    with tempfile.TemporaryDirectory() as name:
        config = AutoConfig.from_pretrained(write_model(SHAPES[shape], Path(name)))
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa").eval()
    options = GenerationConfig(max_new_tokens=output, do_sample=False, eos_token_id=-1, pad_token_id=0)
    seconds = []
    for _ in range(2):  # the first time it also allocates, compiles and captures
        started = time.perf_counter()
        result = model.generate_batch(inputs=requested, generation_config=options, persistent_manager=True)
        seconds.append(time.perf_counter() - started)
        generated = [len(item.generated_tokens) for item in result.values()]
        if len(generated) != count or set(generated) != {output}:
            raise AssertionError(
                f"{len(generated)} of {count} requests came back, with {sorted(set(generated))} tokens"
            )
    getattr(model, "destroy_cached_continuous_batching_manager", list)()
    return {"seconds": seconds[-1], "first_seconds": seconds[0], "output_rate": count * output / seconds[-1]}


PARTS: Mapping[str, Callable[..., Any]] = {
    "environment": environment,
    "ceilings": ceilings,
    "kernels": kernels,
    "quantized": quantized_products,
    "quantized_speed": quantized_speed,
    "launches": launches,
    "layers": layers,
    "sampling": sampling_is_right,
    "sampling_speed": sampling_speed,
    "conformance": conformance,
    "parity": parity,
    "adapters": adapters_are_right,
    "adapter_steps": adapter_steps,
    "near": near,
    "overlap": overlap,
    "memory": memory,
    "moe": moe,
    "modules": modules,
    "prompts": prompt_steps,
    "recurrent": recurrent,
    "recurrent_speed": recurrent_speed,
    "rows": rows,
    "speed": speed,
    "prefix": prefix,
    "step": step,
    "reference": reference,
}
