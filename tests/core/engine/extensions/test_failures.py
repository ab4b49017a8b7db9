"""Failures of step extensions in a whole engine are reported with the name of the extension."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import ConfigError, EngineConfig, EngineError, PluginOptions, Request, RequestError, SamplingParams
from sglang_plug.config import CacheOptions, ModelOptions

pytestmark = pytest.mark.whole_engine

PLUGIN = """
from sglang_plug import (
    AdmissionPhase, ForwardPhase, LogitsBatch, LogitsProcessor, LogitsProcessorSpec, OutputPhase, PlanningPhase,
    ServicePhase, StepExtension, StepExtensionSpec, hookimpl,
)

FAILS = "METHOD"

@hookimpl
def register_step_extensions():
    yield StepExtensionSpec(name="faulty", target=f"{__name__}:build", before=("lorra",))

@hookimpl
def register_logits_processors():
    yield LogitsProcessorSpec(name="forbidding", target=f"{__name__}:Forbidding")

def fail(method):
    if method == FAILS:
        raise KeyError(f"a fault in {method}")

class Faulty(StepExtension, AdmissionPhase, ForwardPhase, OutputPhase, PlanningPhase, ServicePhase):
    def start(self):
        fail("start")

    def admit(self, sequence):
        fail("admit")

    def order(self, waiting, running):
        fail("order")
        return [*waiting, *waiting] if FAILS == "wrong order" else waiting

    def plan(self, step):
        fail("plan")

    def before_forward(self, chunks):
        fail("before_forward")

    def output(self, sequence, output):
        fail("output")
        return None if FAILS == "no output" else output

    def info(self):
        return {"faulty": object() if FAILS == "info" else 1}

class TakesLess(Faulty):
    def output(self, sequence):
        return None

class NoPhase(StepExtension):
    def output(self, sequence, output):
        return output

def build(context):
    return {"signature": TakesLess, "phase": NoPhase}.get(FAILS, Faulty)()

class Forbidding(LogitsProcessor):
    def __init__(self, settings, vocab_size, device):
        pass

    def prepare(self, request):
        return True if FAILS == "apply" else None

    def batch(self, rows):
        return Nothing()

class Nothing(LogitsBatch):
    def apply(self, logits, generated):
        return logits - float("inf")
"""
OWNER = "step-extension 'faulty' from "


@pytest.fixture
def engine(tiny_model: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path) -> Callable[[str], Any]:
    """Return ``engine(method)``, which starts an engine with an extension that fails in this method."""

    def make(method: str) -> Any:
        plugin = tmp_path / "faulty_plugin.py"
        plugin.write_text(PLUGIN.replace("METHOD", method))
        return serve(
            EngineConfig(
                model=ModelOptions(path=str(tiny_model("llama-3.2-1b").path), device="cpu"),
                cache=CacheOptions(max_total_tokens=256),
                plugins=PluginOptions(files=(str(plugin),)),
            )
        )

    return make


REQUEST = Request(id="a", tokens=(5, 6), params=SamplingParams(max_new_tokens=3, stop_token_ids=()))


def test_an_extension_that_does_not_start_is_named(engine: Callable[[str], Any]) -> None:
    with pytest.raises(ConfigError, match=rf"{OWNER}.* failed while the engine was built: KeyError: 'a fault in start"):
        engine("start")


@pytest.mark.parametrize("method", ["admit", "order", "plan", "before_forward"])
def test_a_request_that_fails_names_the_extension(method: str, engine: Callable[[str], Any]) -> None:
    served = engine(method)
    with pytest.raises(RequestError) as failed:
        served.outputs([REQUEST])
    assert failed.value.status == 500
    assert OWNER in str(failed.value) and f"a fault in {method}" in str(failed.value)


def test_a_probably_misspelt_name_in_the_order_is_logged_at_the_start(
    engine: Callable[[str], Any], caplog: pytest.LogCaptureFixture
) -> None:
    engine("nothing")
    assert "before= names 'lorra', which no plugin declares; did you mean 'lora'?" in caplog.text


def test_a_wrong_answer_names_the_extension(engine: Callable[[str], Any]) -> None:
    served = engine("wrong order")
    for _ in range(2):  # the engine continues to serve
        with pytest.raises(RequestError, match=rf"{OWNER}.*: order\(\) must return a subset of the 1 given sequences"):
            served.outputs([REQUEST])


def test_an_engine_that_ends_names_the_extension(engine: Callable[[str], Any]) -> None:
    served = engine("output")
    with pytest.raises(EngineError, match=rf"a fault in output.*{OWNER}"):
        served.outputs([REQUEST])


def test_an_output_that_is_none_names_the_extension_that_returned_it(engine: Callable[[str], Any]) -> None:
    served = engine("no output")
    with pytest.raises(EngineError, match=rf"{OWNER}.*: output\(\) returned NoneType, not an Output"):
        served.outputs([REQUEST])


def test_a_method_with_other_parameters_is_named_at_the_start(engine: Callable[[str], Any]) -> None:
    message = rf"{OWNER}.*: TakesLess\.output\(\) cannot be called with \(sequence, output\)"
    with pytest.raises(ConfigError, match=message):
        engine("signature")


def test_a_method_of_a_phase_that_the_extension_lacks_is_logged_at_the_start(
    engine: Callable[[str], Any], caplog: pytest.LogCaptureFixture
) -> None:
    engine("phase")
    assert "NoPhase has output and does not inherit from OutputPhase, so the engine never calls it" in caplog.text


def test_data_that_no_other_process_can_read_names_the_extension(engine: Callable[[str], Any]) -> None:
    with pytest.raises(ConfigError, match=rf"{OWNER}.*: info\(\) must return plain data: Encoding objects"):
        engine("info")


def test_a_processor_that_forbids_every_token_is_named(engine: Callable[[str], Any]) -> None:
    served = engine("apply")
    with pytest.raises(RequestError, match="a logits processor left no token: logits-processor 'forbidding' from"):
        served.outputs([REQUEST])
