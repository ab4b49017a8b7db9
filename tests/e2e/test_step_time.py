"""Tests of the step time model of a server that has just become ready."""

from __future__ import annotations

from typing import Any

from .test_metrics import scrape, value


def test_a_ready_server_has_learned_how_long_steps_take(launch: Any) -> None:
    """The warm-up fits the step time model before the first request of a user."""
    server = launch.in_thread("--enable-metrics")
    step_time = server.info()["step_time"]
    coefficients = step_time["coefficients"]
    assert coefficients["decode_step"] + coefficients["decode_sequence"] + coefficients["decode_context_token"] > 0
    assert coefficients["prefill_token"] > 0
    assert step_time["target_itl"] == "automatic" and step_time["target_seconds"] >= 0.05
    families = scrape(server)
    samples = families["sglang:step_time_coefficient"].samples
    assert {sample.labels["coefficient"]: sample.value for sample in samples} == coefficients
    assert value(families, "step_target_seconds") == step_time["target_seconds"]
    assert server.info()["slots"]["cached"] == 0, "what was computed for this is not kept"


def test_a_small_context_and_low_limits_of_a_caller_do_not_disturb_the_start(launch: Any) -> None:
    limits = ("--max-running-per-caller", "1", "--max-queued-per-caller", "1", "--max-running-requests", "2")
    server = launch.in_thread("--context-length", "24", "--max-total-tokens", "64", *limits, "--target-itl-ms", "40")
    step_time = server.info()["step_time"]
    assert (step_time["target_itl"], step_time["target_seconds"]) == ("fixed", 0.04)
    assert any(step_time["coefficients"][f"decode_{part}"] > 0 for part in ("step", "sequence", "context_token"))
    assert server.generate({"text": "Hi", "sampling_params": {"max_new_tokens": 2}})["output_ids"]
