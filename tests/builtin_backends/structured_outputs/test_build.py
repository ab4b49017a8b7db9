"""The choice of the grammar backend and the tokenizer, and servers without structured outputs."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch

from sglang_plug import (
    ConfigError,
    Constraint,
    EngineConfig,
    ExtensionContext,
    Facts,
    PluginOptions,
    Plugins,
    ReasoningPrefix,
    Request,
    RequestError,
    Vocabulary,
)
from sglang_plug.config import BackendOptions, CacheOptions, ModelOptions
from sglang_plug.contracts.serving.executor import SINGLE_RANK
from sglang_plug.engine.extensions.build import BuiltExtensions, RankLink, build_extensions, send_nothing
from sglang_plug.engine.loading.resolve import resolve
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug.plugins.attribution import make_with_settings
from sglang_plug_backends.structured_outputs.build import ChosenBackends, build, choose_backends
from sglang_plug_backends.structured_outputs.extension import StructuredOutputs

CONSTRAINED = Request(id="a", tokens=(5, 6), constraint=Constraint("regex", "a"))
Built = Callable[..., BuiltExtensions]
CPU, NO_OPTIONS = torch.device("cpu"), PluginOptions()


@pytest.fixture
def built(tiny_model: Callable[..., Any]) -> Built:
    """Return ``built(grammar, *blocked)``, which builds the extensions of an engine."""
    path = tiny_model("llama-3.2-1b").path

    def make(grammar: str, *blocked: str, task: str = "auto") -> BuiltExtensions:
        plugins = PluginOptions(block=blocked)
        model = ModelOptions(path=str(path), device="cpu", task=task)
        config = EngineConfig(model=model, backends=BackendOptions(grammar=grammar), plugins=plugins)
        discovered = Plugins.discover(plugins)
        return build_extensions(resolve(config, discovered), discovered)

    return make


@pytest.fixture
def chosen() -> Callable[..., ChosenBackends]:
    """Return ``chosen(grammar, *blocked)``, which returns the backends that the extension is built with."""

    def make(grammar: str, *blocked: str) -> ChosenBackends:
        chosen = choose_backends(context(grammar, PluginOptions(block=blocked)))
        assert isinstance(chosen, ChosenBackends)
        return chosen

    return make


def context(grammar: str, options: PluginOptions = NO_OPTIONS) -> ExtensionContext:
    """Return the context of an engine that uses this grammar backend."""
    plugins = Plugins.discover(options)
    return ExtensionContext(
        config=EngineConfig(backends=BackendOptions(grammar=grammar)),
        plugins=plugins,
        facts=Facts(),
        device=CPU,
        dtype=torch.float32,
        model=plugins.get("model", "LlamaForCausalLM"),
        ranks=RankLink("structured-outputs", SINGLE_RANK, CPU, send_nothing),
        settings=None,
        request_fields=lambda request: None,
        tasks=("generate",),
        vocab_size=9,
        max_running=4,
        chunk_size=64,
        states=(),
        make=lambda component, reason, contract: make_with_settings(component, contract=contract),
        choose=lambda component, reason: None,
        vocabulary=lambda: Vocabulary([b""] * 9),
        describe=lambda error, component: repr(error),
    )


def refusal(extensions: BuiltExtensions, request: Request = CONSTRAINED) -> RequestError:
    with pytest.raises(RequestError) as caught:
        extensions.points.requests.admit_sequence(Sequence.of(request, 20))
    return caught.value


def test_a_backend_is_chosen_together_with_a_tokenizer(built: Built, chosen: Any) -> None:
    for name in ("auto", "xgrammar"):
        choices = built(name).resolved.choices
        assert choices["grammar"].component.spec.name == "xgrammar"
        assert choices["tokenizer"].component.spec.name == "huggingface"
        backends = chosen(name)
        names = [component.spec.name for component in backends.components]
        assert names[0] == "xgrammar" and backends.order == tuple(names if name == "auto" else names[:1])


@pytest.mark.parametrize("blocked", ["grammar:xgrammar", "xgrammar"])
def test_without_the_chosen_backend_another_one_is_taken(chosen: Any, blocked: str) -> None:
    pytest.importorskip("llguidance")
    backends = chosen("auto", blocked)
    assert backends.order[0] == "llguidance" and "xgrammar" not in backends.order


def test_none_and_the_lack_of_one_are_reasons(built: Built) -> None:
    off = built("none")
    assert not {"grammar", "tokenizer"} & off.resolved.choices.keys() and not off.choices.has_tokenizer
    assert "--grammar-backend none" in str(refusal(off)) and refusal(off).about == "constraint"
    lacking = built("auto", *(f"grammar:{name}" for name in Plugins.discover().names("grammar")))
    assert not {"grammar", "tokenizer"} & lacking.resolved.choices.keys()
    words = "structured outputs are not available: grammar 'xgrammar' from sglang-plug"
    assert str(refusal(lacking)).startswith(words)
    with pytest.raises(ConfigError, match="no grammar named 'xgrammer'"):
        built("xgrammer")


def test_a_model_that_does_not_generate_has_no_grammars(built: Built) -> None:
    pooling = built("auto", task="embed")
    assert "grammar" not in pooling.resolved.choices
    assert str(refusal(pooling)) == "the model does not generate"


def test_a_server_without_the_extension_refuses_options_and_requests_by_name(built: Built) -> None:
    with pytest.raises(ConfigError, match="--grammar-backend xgrammar: the step extension 'structured-outputs'"):
        built("xgrammar", "structured_outputs")
    for name in ("auto", "none"):  # these names do not need the extension
        blocked = built(name, "structured_outputs")
        assert blocked.points.sampling.allowed == ()
        assert not any(isinstance(holder, StructuredOutputs) for holder in blocked.points.requests.hold_phases)
        error = refusal(blocked)
        assert "constraint: no step extension that serves this field" in str(error)
        assert "'structured-outputs'" in str(error) and error.about == "constraint"
        prefixed = replace(CONSTRAINED, constraint=None, reasoning_prefix=ReasoningPrefix(((1,),)))
        assert "reasoning_prefix: no step extension" in str(refusal(blocked, prefixed))
        blocked.points.requests.admit_sequence(Sequence.of(replace(CONSTRAINED, constraint=None), 20))


def test_only_the_main_thread_is_interrupted() -> None:
    """The signal handler is installed only if the engine is built in the main thread."""
    before = signal.getsignal(signal.SIGUSR1)
    try:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(build, context("auto")).result()
        assert signal.getsignal(signal.SIGUSR1) is before
        build(context("auto"))
        assert signal.getsignal(signal.SIGUSR1) is not before
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_engine_without_a_tokenizer_serves_all_but_constraints(
    tiny_model: Callable[..., Any], serve: Callable[..., Any]
) -> None:
    config = EngineConfig(
        model=ModelOptions(path=str(tiny_model("llama-3.2-1b").path), device="cpu"),
        cache=CacheOptions(max_total_tokens=512),
    )
    engine = serve(config)
    for _ in range(2):
        with pytest.raises(RequestError, match="structured outputs are not available: .*holds no tokenizer") as caught:
            engine.outputs([CONSTRAINED])
        assert caught.value.status == 400
    (output,) = engine.outputs([Request(id="b", tokens=(5, 6))])
    assert output.tokens
