"""Adapters of any format share batches, prefixes and graphs as their kinds allow."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sglang_plug import (
    ConfigError,
    EngineConfig,
    LogprobOptions,
    PluginError,
    PluginOptions,
    Request,
    RequestError,
    SamplingParams,
    SequenceView,
)
from sglang_plug.config import (
    AdapterOptions,
    BackendOptions,
    CacheOptions,
    ModelOptions,
    ScheduleOptions,
    SpeculativeOptions,
)
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug_backends.lora.adapter_limit import MAX_WAIT_SECONDS, AdapterLimit
from sglang_plug_backends.lora.lora_batch import AdaptedProduct, AdaptedStep, AdapterUse, CurrentStep, LoadedAdapter
from tests.builtin_backends.lora.plugin_sources import SCALING, WATCHED_STEPS
from tests.peft_adapters import Lora, linears, make_lora


@pytest.fixture
def plugin(tmp_path: Path) -> PluginOptions:
    file = tmp_path / "scaling.py"
    file.write_text(SCALING)
    return PluginOptions(files=(str(file),))


def make_scaling(path: Path, model: Any, names: list[str], seed: int) -> tuple[Path, Any]:
    """Write an IA3 adapter; return its folder, and transformers' model with the factors merged into its weights."""
    generator, merged, stored = torch.Generator().manual_seed(seed), deepcopy(model), {}
    for name in names:
        module, side = merged.get_submodule(name), "in" if name.endswith("down_proj") else "out"
        numbers = 1 + 0.3 * torch.randn(module.weight.shape[side == "in"], generator=generator)
        stored[name] = {side: numbers.tolist()}
        with torch.no_grad():
            module.weight.mul_(numbers if side == "in" else numbers[:, None])
            if module.bias is not None:
                module.bias.mul_(numbers)
    path.mkdir()
    (path / "scaling.json").write_text(json.dumps(stored))
    return path, merged


def config(path: Path, adapters: Mapping[str, Path], **more: Any) -> EngineConfig:
    chunk, running, pool = more.pop("chunk", 16), more.pop("running", 16), more.pop("pool", 4096)
    plugins, backends = more.pop("plugins", PluginOptions()), more.pop("backends", {"attention": "torch"})
    paths = tuple(f"{name}={folder}" for name, folder in adapters.items())
    return EngineConfig(
        model=ModelOptions(path=str(path), device="cpu", dtype="float32"),
        cache=CacheOptions(max_total_tokens=pool),
        schedule=ScheduleOptions(chunked_prefill_size=chunk, max_running_requests=running),
        backends=BackendOptions(**backends),
        adapters=AdapterOptions(enabled=True, paths=paths, **more),
        plugins=plugins,
    )


def request(id: str, adapter: str | None, tokens: tuple[int, ...], count: int = 6, **more: Any) -> Request:
    params = SamplingParams(max_new_tokens=count, temperature=0.0)
    return Request(id=id, tokens=tokens, adapter=adapter, params=params, logprobs=LogprobOptions(), **more)


def greedy(model: Any, reference: Any, tokens: tuple[int, ...], count: int) -> list[int]:
    continuation: list[int] = type(model)(model.path, reference).greedy(tokens, count)
    return continuation


LONG = tuple(range(20, 75))


@pytest.mark.parametrize("family", ["qwen2.5-0.5b", "gemma-2-2b"])
def test_formats_share_a_step(
    tiny_model: Callable[[str], Any], serve: Callable[..., Any], tmp_path: Path, plugin: PluginOptions, family: str
) -> None:
    model = tiny_model(family)
    names = [
        f"model.layers.{layer}.{projection}"
        for layer in (0, 2)
        for projection in ("self_attn.k_proj", "self_attn.v_proj", "mlp.down_proj")
    ]
    references: dict[str | None, Any] = {None: model.reference}
    paths = {}
    for seed, name in enumerate(("a", "b")):
        paths[name], references[name] = make_scaling(tmp_path / name, model.reference, names, seed)
    lora = make_lora(tmp_path / "lora", model.reference, linears(model.reference, r".*layers.*_proj"))
    paths["lora"], references["lora"] = lora.path, lora.merged(model.reference)
    engine = serve(config(model.path, paths, plugins=plugin))
    requests = [
        request(f"{index}-{name}", name, LONG[: 5 + 40 * index])
        for index in range(2)
        for name in (None, "lora", "b", "a", "b")
    ]
    requests = [replace(submitted, id=str(index)) for index, submitted in enumerate(requests)]
    for submitted, output in zip(requests, engine.outputs(requests), strict=True):
        assert list(output.tokens) == greedy(model, references[submitted.adapter], submitted.tokens, 6), submitted
    assert engine.control("info")["adapters"] == {name: str(path) for name, path in paths.items()}


@pytest.fixture
def lora(tiny_model: Callable[[str], Any], tmp_path: Path) -> dict[str, Lora]:
    """Write three adapters for the tiny Llama."""
    reference = tiny_model("llama-3.2-1b").reference
    names = linears(reference, r".*layers.*_proj")
    return {name: make_lora(tmp_path / name, reference, names, seed=seed) for seed, name in enumerate("xyz")}


def folders(lora: dict[str, Lora]) -> dict[str, Path]:
    return {name: adapter.path for name, adapter in lora.items()}


def test_retracted_sequences_keep_theirs(
    tiny_model: Callable[[str], Any], serve: Callable[..., Any], lora: dict[str, Lora]
) -> None:
    model = tiny_model("llama-3.2-1b")
    engine = serve(config(model.path, folders(lora), pool=160, chunk=64))
    requests = [
        request(str(index), name, LONG[index:20], 40) for index, name in enumerate(("x", None, "y", "z", "x", "y"))
    ]
    outputs = engine.outputs(requests)
    assert sum(output.retractions for output in outputs) > 0
    for submitted, output in zip(requests, outputs, strict=True):
        reference = model.reference if submitted.adapter is None else lora[submitted.adapter].merged(model.reference)
        assert list(output.tokens) == greedy(model, reference, submitted.tokens, 40), submitted.id


def test_no_step_has_more_adapters_than_the_limit(
    tiny_model: Callable[[str], Any], serve: Callable[..., Any], lora: dict[str, Lora], tmp_path: Path
) -> None:
    (tmp_path / "watched.py").write_text(WATCHED_STEPS)
    watched = PluginOptions(files=(str(tmp_path / "watched.py"),))
    model = tiny_model("llama-3.2-1b")
    engine = serve(config(model.path, folders(lora), max_per_batch=2, plugins=watched))
    requests = [
        request(str(index), name, LONG[index:30]) for index, name in enumerate(("x", "y", "z", None, "z", "x", "y"))
    ]
    for submitted, output in zip(requests, engine.outputs(requests), strict=True):
        reference = model.reference if submitted.adapter is None else lora[submitted.adapter].merged(model.reference)
        assert list(output.tokens) == greedy(model, reference, submitted.tokens, 6), submitted.id
    steps = engine.control("info")["adapters_of_steps"]
    assert max(map(len, steps)) == 2 and set().union(*steps) == {"x", "y", "z"}


def test_prefixes_of_another_salt_or_adapter_are_not_shared(
    tiny_model: Callable[[str], Any], serve: Callable[..., Any], lora: dict[str, Lora]
) -> None:
    engine = serve(config(tiny_model("llama-3.2-1b").path, folders(lora)))

    def cached(id: str, **more: Any) -> int:
        cached_tokens: int = engine.outputs([replace(request(id, "x", LONG, 1), **more)])[0].cached_tokens
        return cached_tokens

    assert (cached("1"), cached("2")) == (0, len(LONG) - 1)
    assert cached("3", adapter="y") == cached("4", adapter=None) == cached("5", salt="s") == 0
    assert cached("6", salt="s") == cached("7", adapter=None) == len(LONG) - 1
    engine.control("unload_adapter", adapter="x")
    engine.control("load_adapter", adapter="x", path=str(lora["z"].path))
    assert (cached("8"), cached("9")) == (0, len(LONG) - 1)


def test_an_adapter_is_separated_by_its_content(
    tiny_model: Callable[[str], Any], serve: Callable[..., Any], lora: dict[str, Lora]
) -> None:
    engine = serve(config(tiny_model("llama-3.2-1b").path, folders(lora)))
    engine.control("load_adapter", adapter="again", path=str(lora["x"].path))
    assert engine.outputs([request("1", "x", LONG, 1)])[0].cached_tokens == 0
    assert engine.outputs([request("2", "again", LONG, 1)])[0].cached_tokens == len(LONG) - 1
    assert engine.outputs([request("3", "y", LONG, 1)])[0].cached_tokens == 0


def test_without_adapters_layers_are_as_they_were(tiny_model: Callable[[str], Any], serve: Callable[..., Any]) -> None:
    path = tiny_model("llama-3.2-1b").path
    plain = serve(replace(config(path, {}), adapters=AdapterOptions()))
    with pytest.raises(RequestError, match="adapters are not enabled"):
        plain.outputs([request("1", "x", LONG)])
    with pytest.raises(RequestError, match="no control call named 'load_adapter'"):
        plain.control("load_adapter", adapter="x", path="/")
    assert plain.info["adapters"] is None
    enabled = serve(config(path, {}))
    with pytest.raises(RequestError, match="no adapter 'x' is loaded; loaded: none") as raised:
        enabled.outputs([request("1", "x", LONG)])
    assert raised.value.status == 404


@pytest.mark.parametrize(
    ("stored", "error", "message"),
    [
        ({"broken": 1}, PluginError, "adapter 'scaling' from .* failed to read .*ZeroDivisionError: in the format"),
        ({"unknown": 1}, PluginError, "for 'model.nowhere', which is not among the layers of the request"),
        ({"wrong": 1}, PluginError, "returned str instead of LayerAdapter"),
        ({}, ConfigError, "changes no layer"),
        (None, ConfigError, r"holds no adapter of a known format \(scaling, lora\)"),
    ],
)
def test_a_start_with_a_bad_one_fails(
    tiny_model: Callable[[str], Any],
    serve: Callable[..., Any],
    tmp_path: Path,
    plugin: PluginOptions,
    stored: Any,
    error: type[Exception],
    message: str,
) -> None:
    folder = tmp_path / "bad"
    folder.mkdir()
    if stored is not None:
        (folder / "scaling.json").write_text(json.dumps(stored))
    path = tiny_model("llama-3.2-1b").path
    with pytest.raises(ConfigError, match=message) as raised:
        serve(config(path, {"bad": folder}, plugins=plugin))
    assert isinstance(raised.value, ConfigError)
    engine = serve(config(path, {}, plugins=plugin))
    with pytest.raises(RequestError, match=message) as refused:
        engine.control("load_adapter", adapter="bad", path=str(folder))
    assert refused.value.status == (500 if error is PluginError else 400)
    assert engine.control("info")["adapters"] == {}
    assert engine.outputs([request("1", None, LONG)])[0].tokens


def test_one_that_does_not_fit_is_refused(
    tiny_model: Callable[[str], Any],
    serve: Callable[..., Any],
    lora: dict[str, Lora],
    plugin: PluginOptions,
    tmp_path: Path,
) -> None:
    engine = serve(config(tiny_model("llama-3.2-1b").path, {}, plugins=plugin))
    (tmp_path / "scaling.json").write_text(json.dumps({"full": 1}))
    with pytest.raises(RequestError, match="'x' was not loaded: memory does not suffice; start the server with"):
        engine.control("load_adapter", adapter="x", path=str(tmp_path))
    assert engine.control("load_adapter", adapter="x", path=str(lora["x"].path))["adapters"].keys() == {"x"}


def test_names_may_be_left_out(
    tiny_model: Callable[[str], Any], serve: Callable[..., Any], lora: dict[str, Lora]
) -> None:
    path, folder = tiny_model("llama-3.2-1b").path, lora["x"].path
    engine = serve(replace(config(path, {}), adapters=AdapterOptions(paths=(f"{folder}/",))))
    assert engine.info["adapters"] == {"x": f"{folder}/"}
    twice = AdapterOptions(paths=(str(folder), f"x={folder}"))
    with pytest.raises(ConfigError, match=r"--lora-paths x=.*: .*an adapter of that name is loaded"):
        serve(replace(config(path, {}), adapters=twice))


def test_models_that_take_none_are_refused(tiny_model: Callable[[str], Any], serve: Callable[..., Any]) -> None:
    path = tiny_model("starcoder2-3b").path
    with pytest.raises(ConfigError, match="has no layers that adapters could change; leave out --enable-lora"):
        serve(config(path, {}))
    llama = config(tiny_model("llama-3.2-1b").path, {})
    with pytest.raises(ConfigError, match="no plugin declares a format of adapters"):
        serve(replace(llama, plugins=PluginOptions(block=("adapter:lora",))))


def test_rows_that_are_not_the_steps_are_an_error() -> None:
    current = CurrentStep()
    product = AdaptedProduct("layer", lambda x: x, current)
    step = AdaptedStep([LoadedAdapter("x", "", "", {}), None], [2, 3], torch.device("cpu"))
    assert product(torch.ones(7, 2)).shape == (7, 2)
    with current.active(step):
        assert product(torch.ones(5, 2)).shape == (5, 2)
        with pytest.raises(RuntimeError, match="'layer' got 7 rows in a step of 5 tokens"):
            product(torch.ones(7, 2))
    assert product(torch.ones(7, 2)).shape == (7, 2)


def sequence(adapter: LoadedAdapter | None) -> SequenceView:
    seq = Sequence.of(request("1", None, (1,)), 4)
    if adapter is not None:
        seq.extras["lora"] = AdapterUse(adapter)
    return seq


def test_a_sequence_that_was_left_out_for_long_blocks_others_with_adapters() -> None:
    now = [100.0]
    x, y = (LoadedAdapter(name, "", "", {}) for name in "xy")
    running = [sequence(x)]
    limit = AdapterLimit(1, lambda sequence: sequence.extras.get("lora"), lambda: now[0])
    second, own, plain = sequence(y), sequence(x), sequence(None)
    waiting = [second, own, plain]
    for _ in range(1000):  # the number of calls does not matter
        assert limit.order(waiting, running) == [own, plain]
    now[0] += MAX_WAIT_SECONDS
    assert limit.order(waiting, running) == [own, plain]
    now[0] += 0.1
    assert limit.order(waiting, running) == [plain]
    running.clear()
    assert limit.order(waiting, running) == [second, plain]


def first_logprobs(engine: Any, names: list[str | None], count: int = 2) -> dict[str | None, float]:
    """Return the log-probability of the first token with each adapter, from one batch."""
    requests = [request(str(index), name, LONG, count) for index, name in enumerate(names)]
    return {
        submitted.adapter: output.logprobs[0].logprob
        for submitted, output in zip(requests, engine.outputs(requests), strict=True)
    }


@pytest.mark.parametrize(
    ("dtype", "backends", "tolerance"),
    [
        ("float32", {"attention": "torch", "kernels": "cpu"}, 1e-4),
        ("bfloat16", {}, 0.15),
        ("float32", {"quantization": "int8"}, 0.5),
        ("float32", {"quantization": "fp8"}, 0.9),
    ],
    ids=str,
)
def test_weights_may_be_packed_or_quantized(
    tiny_model: Callable[[str], Any],
    serve: Callable[..., Any],
    lora: dict[str, Lora],
    dtype: str,
    backends: dict[str, Any],
    tolerance: float,
) -> None:
    model = tiny_model("llama-3.2-1b")
    served = config(model.path, folders(lora), backends=backends)
    engine = serve(replace(served, model=replace(served.model, dtype=dtype)))
    names = [None, *lora]
    logprobs = first_logprobs(engine, names)
    for name in names:
        merged = model.reference if name is None else lora[name].merged(model.reference)
        with torch.inference_mode():
            expected = merged(torch.tensor([LONG])).logits[0, -1].log_softmax(-1).max().item()
        assert logprobs[name] == pytest.approx(expected, abs=tolerance), name
    again = {name: first_logprobs(engine, [name])[name] for name in names}
    assert again == pytest.approx(logprobs, abs=0.05 if dtype == "bfloat16" else 1e-3), (
        "a request depends on who is computed with it"
    )


def test_guessed_tokens_are_the_adapters(
    tiny_model: Callable[[str], Any], serve: Callable[..., Any], lora: dict[str, Lora]
) -> None:
    model = tiny_model("llama-3.2-1b")
    served = config(model.path, folders(lora))
    engine = serve(replace(served, speculative=SpeculativeOptions(algorithm="ngram")))
    always = SamplingParams(max_new_tokens=24, temperature=0.0, logit_bias={5: 1000.0})  # easily guessed
    requests = [
        replace(request(str(index), name, LONG), params=always) for index, name in enumerate([None, "x", "y", "x"])
    ]
    outputs = engine.outputs(requests)
    assert all(output.drafts is not None and output.drafts.accepted for output in outputs)
    for submitted, output in zip(requests, outputs, strict=True):
        assert output.tokens == (5,) * 24
        reference = model.reference if submitted.adapter is None else lora[submitted.adapter].merged(model.reference)
        expected = type(model)(model.path, reference).logprobs([*LONG, *output.tokens])[len(LONG) - 1 :]
        assert [entry.logprob for entry in output.logprobs] == pytest.approx(expected, abs=1e-4), submitted.id


def test_new_weights_get_the_adapters_that_are_loaded(
    tiny_model: Callable[[str], Any], serve: Callable[..., Any], lora: dict[str, Lora], tmp_path: Path
) -> None:
    model = tiny_model("llama-3.2-1b")
    engine = serve(config(model.path, folders(lora)))
    other = deepcopy(model.reference)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.2)
    other.save_pretrained(tmp_path / "other")
    before = engine.outputs([request("1", "x", LONG)])
    assert engine.control("update_weights", source=str(tmp_path / "other"))["success"]
    after = engine.outputs([request("2", "x", LONG)])
    assert list(after[0].tokens) == greedy(model, lora["x"].merged(other), LONG, 6) != list(before[0].tokens)
