"""Tests of ``/metrics``, parsed as Prometheus does."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

MODEL = {"model_name": "sglang-plug-demo"}
GAUGES = {"num_running_reqs", "num_queue_reqs", "num_used_tokens", "num_cached_tokens", "token_usage"}
GAUGES |= {"cache_hit_rate", "gen_throughput", "plugin_info", "step_target_seconds"}
GAUGES |= {"step_time_coefficient"}
GAUGES |= {"spec_accept_length", "spec_accept_rate", "cache_config_info"}
COUNTERS = {"prompt_tokens", "generation_tokens", "cached_tokens", "num_requests", "num_aborted_requests"}
COUNTERS |= {
    "num_retracted_reqs",
    "forced_tokens",
    "spec_drafted_tokens",
    "spec_accepted_tokens",
    "memory_relieved_tokens",
    "deadline_met",
    "deadline_missed",
    "deadline_refused",
}
HISTOGRAMS = {"time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds"}
HISTOGRAMS |= {"queue_time_seconds"}


def scrape(server: Any) -> dict[str, Any]:
    answer = server.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {family.name: family for family in text_string_to_metric_families(answer.text)}


def value(families: dict[str, Any], sample: str) -> float:
    (number,) = [
        item.value for family in families.values() for item in family.samples if item.name == f"sglang:{sample}"
    ]
    return number


def test_names_and_kinds(server: Any) -> None:
    kinds = {name.removeprefix("sglang:"): family.type for name, family in scrape(server).items()}
    kinds = {name: kind for name, kind in kinds.items() if not name.endswith("_created")}
    expected = {name: "gauge" for name in GAUGES} | {name: "counter" for name in COUNTERS}
    assert kinds == expected | {name: "histogram" for name in HISTOGRAMS}
    assert all(name.startswith("sglang:") for name in scrape(server))


def test_counters_follow_requests(server: Any) -> None:
    server.wait_whole()
    before = scrape(server)
    body = {"text": "The capital of France is", "sampling_params": {"max_new_tokens": 9, "ignore_eos": True, "n": 2}}
    server.generate(body)
    after = scrape(server)
    grown = {name: value(after, name) - value(before, name) for name in (
        "prompt_tokens_total", "generation_tokens_total", "num_requests_total", "num_aborted_requests_total",
        "e2e_request_latency_seconds_count", "time_to_first_token_seconds_count", "inter_token_latency_seconds_count",
        "queue_time_seconds_count",
    )}  # fmt: skip
    inter_token = grown.pop("inter_token_latency_seconds_count")
    assert grown == {
        "prompt_tokens_total": 10.0,
        "generation_tokens_total": 18.0,
        "num_requests_total": 2.0,
        "num_aborted_requests_total": 0.0,
        "e2e_request_latency_seconds_count": 2.0,
        "time_to_first_token_seconds_count": 2.0,
        "queue_time_seconds_count": 2.0,
    }
    assert 1 <= inter_token <= 16


def test_gauges_at_rest(server: Any) -> None:
    server.wait_whole()
    families = scrape(server)
    for name in ("num_running_reqs", "num_queue_reqs", "num_used_tokens"):
        assert value(families, name) == 0, name
    assert value(families, "num_cached_tokens") == server.info()["slots"]["cached"]
    assert 0 <= value(families, "cache_hit_rate") <= 1


def test_components_in_use(server: Any) -> None:
    names = {sample.labels["kind"]: sample.labels["name"] for sample in scrape(server)["sglang:plugin_info"].samples}
    assert names == {kind: component["name"] for kind, component in server.info()["components"].items()}
    assert names["attention"] == "torch"


def test_every_sample_names_the_model(server: Any) -> None:
    for name, family in scrape(server).items():
        for sample in family.samples:
            assert name == "sglang:plugin_info" or sample.labels.items() >= MODEL.items(), sample
