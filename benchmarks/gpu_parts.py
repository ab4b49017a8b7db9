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

from benchmarks.gpu_adapters import adapter_steps, adapters_are_right
from benchmarks.gpu_ceilings import ceilings
from benchmarks.gpu_coded import coded, coded_speed
from benchmarks.gpu_draws import draws, draws_are_right
from benchmarks.gpu_engine import decode_steps, overlap_changes_nothing
from benchmarks.gpu_flashinfer import modules
from benchmarks.gpu_kernels import kernels
from benchmarks.gpu_layers import launches, layers
from benchmarks.gpu_memory import start_and_serve
from benchmarks.gpu_moe import moe
from benchmarks.gpu_prompts import prompt_steps
from benchmarks.gpu_recurrent import recurrent, recurrent_speed
from benchmarks.gpu_rows import rows
from benchmarks.gpu_scales import enlarge
from benchmarks.gpu_targets import CROWD, LONG_PROMPT, ONE_STREAM, name_of
from benchmarks.load import Load, prompts
from benchmarks.models import SHAPES, Shape, write_model
from benchmarks.offline import Choice, Throughput, throughput
from sglang_plug import EngineConfig, Plugins, Request, SamplingParams
from sglang_plug.config import BackendOptions, CacheOptions, ModelOptions, ScheduleOptions
from sglang_plug.engine.thread import ThreadClient
from sglang_plug.testing import check_attention_backend
from sglang_plug.testing.cases import Case

LOADS: Mapping[str, Sequence[tuple[int, int, int]]] = {
    "tiny": ((1, 16, 8), (4, 16, 8)),
    "llama-1B": (ONE_STREAM, CROWD),
    "llama-8B": (ONE_STREAM, CROWD, LONG_PROMPT),
}
"""Shape -> requests at once, tokens in, tokens out."""
PREFIX_LOADS = {"tiny": (6, 40, 8, 4), "llama-8B": (256, 2048, 64, 32), "llama-1B": (256, 2048, 64, 32)}
"""Shape -> requests at once, tokens in common, own tokens, tokens out."""
MEMORY_LOADS = {"tiny": (4, 16, 8), "llama-8B": (256, 512, 8), "llama-1B": (256, 512, 8)}
CROWDS = {"tiny": (4, 16, 12), "llama-8B": CROWD, "llama-1B": CROWD}
NEAR_SHAPE = dataclasses.replace(SHAPES["tiny"], name="tiny-64", dim=64, heads=8, kv_heads=2)
"""A head dimension that every backend serves."""
NEAR, NEAR_FLOAT8 = 0.25, 1.0
"""How far below the best logit that of a token chosen in bfloat16 may be, in standard deviations of the logits; and
with keys and values in float8."""
KV_DTYPES = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
SWITCH_SECONDS = 2e-4
"""The clients' thread gives up Python's lock to the engine's after this time. Python's 5 ms are as long as a step, and
a server has a process for each."""
PIECES = 64
"""Most tokens of a step that is captured in pieces, where these are to be right: more than some prompts have."""
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


def conformance(device: str, backend: str, dtype: str, cases: str = "all", kv_dtype: str = "auto") -> str:
    """The conformance kit; raises ``AssertionError`` if the backend fails it.

    With ``cases="plain"`` without windows and caps: FlashInfer compiles kernels of their own for these.
    """

    def is_plain(case: Case) -> bool:
        return all(layer.window is None and layer.softcap is None for layer in case.layers)

    only = is_plain if cases == "plain" else None
    pool = None if kv_dtype == "auto" else KV_DTYPES[kv_dtype]
    check_attention_backend(backend, device=device, dtype=getattr(torch, dtype), kv_dtype=pool, only=only)
    return "passed"


def parity(device: str, backend: str, graphs: str = "graphs") -> dict[str, Any]:
    """Greedy tokens of a tiny random model in float32 against transformers; raises at the first difference."""
    wanted = _wanted(SHAPES["tiny"])
    with tempfile.TemporaryDirectory() as name:
        folder = write_model(SHAPES["tiny"], Path(name))
        model = _random_model(folder, device)
        expected = [_greedy(model, tokens, device) for tokens in wanted]
        found = asyncio.run(_served(_config(folder, device, "float32", backend, graphs), wanted))
    wrong = [index for index, (mine, theirs) in enumerate(zip(found, expected, strict=True)) if mine != theirs]
    if wrong:
        raise AssertionError(f"prompts {wrong} differ; the first: {found[wrong[0]]} instead of {expected[wrong[0]]}")
    return {"prompts": len(wanted), "tokens": sum(map(len, found)), "equal": True}


@torch.inference_mode()
def near(device: str, backend: str, graphs: str = "graphs", kv_dtype: str = "auto") -> dict[str, Any]:
    """Greedy tokens in bfloat16: by transformers' logits in float32 each must be (nearly) the best one.

    In float8 the checkpoint has large keys and values, and their scales.
    """
    wanted = _wanted(NEAR_SHAPE)
    worst, equal, total = 0.0, 0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = write_model(NEAR_SHAPE, Path(name))
        model = _random_model(folder, device)
        if kv_dtype in KV_DTYPES:
            enlarge(folder)
        found = asyncio.run(_served(_config(folder, device, "bfloat16", backend, graphs, kv_dtype), wanted))
        for prompt, tokens in zip(wanted, found, strict=True):
            logits = model(torch.tensor([[*prompt, *tokens]], device=device)).logits[0, len(prompt) - 1 : -1]
            chosen = logits.gather(1, torch.tensor(tokens, device=device)[:, None])[:, 0]
            short = (logits.max(-1).values - chosen) / logits.std(-1)
            worst = max(worst, float(short.max()))
            equal, total = equal + int((short == 0).sum()), total + len(tokens)
    bound = NEAR_FLOAT8 if kv_dtype in KV_DTYPES else NEAR
    if not worst <= bound:
        raise AssertionError(f"a chosen token is {worst:.3f} standard deviations below the best one, more than {bound}")
    return {"tokens": total, "best": equal, "worst": worst}


def _wanted(shape: Shape) -> list[list[int]]:
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


def _random_model(folder: Path, device: str) -> Any:
    """Transformers' random model in float32, which is saved in ``folder``."""
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


def speed(device: str, shape: str, backend: str, kv_dtype: str = "auto") -> dict[str, Any]:
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
        kv_dtype=kv_dtype,
        running=max(size[0] for size in sizes),
        max_total_tokens=2 * max(count * (prompt + output) for count, prompt, output in sizes),
    )
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        found = asyncio.run(throughput(choice, loads))
    finally:
        sys.setswitchinterval(before)
    return {name_of(load): one for load, one in zip(sizes, found, strict=True)}


def prefix(device: str, shape: str, backend: str) -> dict[str, Any]:
    """Requests with a long prefix in common: seconds with the prefix cache, and without."""
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
    """A start with options left alone: weights, pool and graphs stay within their share, also while serving."""
    return start_and_serve(device, SHAPES[shape], backend, MEMORY_LOADS[shape])


def step(device: str, shape: str, backend: str) -> dict[str, Any]:
    """A decode step of a crowd: how long the device works in it, and how long the host makes it wait."""
    return decode_steps(device, SHAPES[shape], backend, *CROWDS[shape])


def overlap(device: str, shape: str, backend: str, graphs: str = "graphs") -> dict[str, Any]:
    """Steps that are launched while the one before is on the device change no output."""
    return overlap_changes_nothing(device, SHAPES[shape], backend, graphs=graphs == "graphs")


@torch.no_grad()
def reference(device: str, shape: str) -> dict[str, Any]:
    """Transformers' continuous batching on random weights of the same shape, with the crowd's load."""
    count, prompt, output = CROWDS[shape]
    wanted = prompts(Load(url="", requests=count, input_len=prompt, vocabulary=SHAPES[shape].vocabulary))
    with tempfile.TemporaryDirectory() as name:
        config = AutoConfig.from_pretrained(write_model(SHAPES[shape], Path(name)))
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa").eval()
    options = GenerationConfig(max_new_tokens=output, do_sample=False, eos_token_id=-1, pad_token_id=0)
    seconds = []
    for _ in range(2):  # the first time it also allocates, compiles and captures
        started = time.perf_counter()
        found = model.generate_batch(inputs=wanted, generation_config=options, persistent_manager=True)
        seconds.append(time.perf_counter() - started)
        made = [len(one.generated_tokens) for one in found.values()]
        if len(made) != count or set(made) != {output}:
            raise AssertionError(f"{len(made)} of {count} requests came back, with {sorted(set(made))} tokens")
    getattr(model, "destroy_cached_continuous_batching_manager", list)()
    return {"seconds": seconds[-1], "first_seconds": seconds[0], "output_rate": count * output / seconds[-1]}


PARTS: Mapping[str, Callable[..., Any]] = {
    "environment": environment,
    "ceilings": ceilings,
    "kernels": kernels,
    "coded": coded,
    "coded_speed": coded_speed,
    "launches": launches,
    "layers": layers,
    "sampling": draws_are_right,
    "draws": draws,
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
