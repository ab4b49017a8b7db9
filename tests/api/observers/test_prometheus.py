"""Tests of the Prometheus metrics: names, types, and the events that change them."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sglang_plug import MetricGauge, RequestEvent, StepStats
from sglang_plug_api.observers.prometheus import PrometheusObserver

COMPONENT = {"name": "torch", "plugin": "torch_native", "distribution": "sglang-plug", "version": "1"}


@pytest.fixture
def observer() -> PrometheusObserver:
    observer = PrometheusObserver(clock=lambda: 0.0)
    observer.on_start({"served_model_name": "demo", "components": {"attention": COMPONENT}})
    return observer


def values(observer: PrometheusObserver) -> dict[str, float]:
    """Return the values of the samples whose only label is the model."""
    families = text_string_to_metric_families(observer.text().decode())
    samples = [sample for family in families for sample in family.samples]
    return {
        sample.name.removeprefix("sglang:"): sample.value
        for sample in samples
        if sample.labels == {"model_name": "demo"} and not sample.name.endswith("_created")
    }


def step(**changes: Any) -> StepStats:
    blank: dict[str, Any] = {field.name: 0 for field in fields(StepStats) if field.default is MISSING}
    return StepStats(**{**blank, **changes})


def event(**changes: Any) -> RequestEvent:
    values: dict[str, Any] = {"id": "r", "reason": "stop", "prompt_tokens": 7, "cached_tokens": 3, "output_tokens": 5}
    return RequestEvent(**{**values, "arrived": 10.0, "first_token": 10.5, "finished": 12.0, **changes})


def test_everything_is_there_from_the_start(observer: PrometheusObserver) -> None:
    metrics = values(observer)
    assert set(metrics.values()) == {0.0}
    assert {"num_running_reqs", "prompt_tokens_total", "e2e_request_latency_seconds_count"} <= metrics.keys()
    text = observer.text().decode()
    assert all(line.startswith(("#", "sglang:")) for line in text.splitlines())
    assert 'sglang:plugin_info{distribution="sglang-plug",kind="attention",name="torch"' in text


def test_gauges_show_the_last_step(observer: PrometheusObserver) -> None:
    observer.on_step(step(running=9, waiting=9, used_slots=90, cached_slots=9, capacity=100))
    observer.on_step(step(running=2, waiting=3, used_slots=40, cached_slots=5, capacity=100))
    metrics = values(observer)
    assert (metrics["num_running_reqs"], metrics["num_queue_reqs"]) == (2, 3)
    assert (metrics["num_used_tokens"], metrics["num_cached_tokens"], metrics["token_usage"]) == (40, 5, 0.4)
    observer.on_step(step())
    assert values(observer)["token_usage"] == 0


def test_hits_and_retractions_add_up(observer: PrometheusObserver) -> None:
    observer.on_step(step(prefill_tokens=30, cached_tokens=10, retracted=1))
    observer.on_step(step(prefill_tokens=0, cached_tokens=40, retracted=2))
    metrics = values(observer)
    assert metrics["cache_hit_rate"] == 50 / 80
    assert (metrics["cached_tokens_total"], metrics["num_retracted_reqs_total"]) == (50, 3)


def test_forced_tokens_and_the_time_in_the_queue(observer: PrometheusObserver) -> None:
    observer.on_step(step(forced_tokens=4, queue_seconds=(0.5, 1.5)))
    observer.on_step(step(forced_tokens=3))
    metrics = values(observer)
    assert metrics["forced_tokens_total"] == 7
    assert (metrics["queue_time_seconds_count"], metrics["queue_time_seconds_sum"]) == (2, 2.0)


def test_drafts(observer: PrometheusObserver) -> None:
    observer.on_step(step(decode_sequences=2))
    metrics = values(observer)
    assert (metrics["spec_accept_length"], metrics["spec_accept_rate"]) == (0, 0), "nothing is drafted"
    observer.on_step(step(decode_sequences=2, drafted_tokens=6, accepted_tokens=5))
    observer.on_step(step(decode_sequences=4, drafted_tokens=4, accepted_tokens=1))
    metrics = values(observer)
    assert (metrics["spec_drafted_tokens_total"], metrics["spec_accepted_tokens_total"]) == (10, 6)
    assert (metrics["spec_accept_length"], metrics["spec_accept_rate"]) == (14 / 8, 0.6)


def test_requests(observer: PrometheusObserver) -> None:
    observer.on_request(event())
    observer.on_request(event(reason="length", first_token=11.0))
    observer.on_request(event(reason="abort", first_token=None))
    metrics = values(observer)
    assert (metrics["num_requests_total"], metrics["num_aborted_requests_total"]) == (3, 1)
    assert metrics["prompt_tokens_total"] == 21
    assert (metrics["time_to_first_token_seconds_count"], metrics["time_to_first_token_seconds_sum"]) == (2, 1.5)
    assert (metrics["e2e_request_latency_seconds_count"], metrics["e2e_request_latency_seconds_sum"]) == (3, 6.0)


def test_tokens_and_the_time_between_them(observer: PrometheusObserver) -> None:
    observer.on_tokens("a", 1, 10.0)
    observer.on_tokens("b", 1, 10.1)
    observer.on_tokens("a", 2, 10.5)
    observer.on_tokens("a", 0, 99.0)
    metrics = values(observer)
    assert metrics["generation_tokens_total"] == 4
    assert metrics["inter_token_latency_seconds_count"] == 2
    assert metrics["inter_token_latency_seconds_sum"] == pytest.approx(0.5)
    assert metrics["gen_throughput"] == 0
    observer.on_tokens("b", 6, 12.0)
    assert values(observer)["gen_throughput"] == 4.5  # nine tokens in the two seconds since the first


def test_throughput_falls_to_nothing_when_no_more_tokens_come() -> None:
    now = [10.0]
    observer = PrometheusObserver(clock=lambda: now[0])
    observer.on_start({"served_model_name": "demo", "components": {}})
    observer.on_tokens("a", 1, 10.0)
    observer.on_tokens("a", 8, 12.0)
    now[0] = 12.5
    assert values(observer)["gen_throughput"] == 4
    now[0] = 30.0
    assert values(observer)["gen_throughput"] == 0


def test_a_request_that_ended_is_forgotten(observer: PrometheusObserver) -> None:
    observer.on_tokens("r", 1, 10.0)
    observer.on_request(event())
    observer.on_tokens("r", 1, 50.0)  # another request of the same id
    assert values(observer)["inter_token_latency_seconds_count"] == 0


def labels_of(observer: PrometheusObserver, name: str) -> list[dict[str, str]]:
    """Return the labels of each sample of a metric."""
    families = text_string_to_metric_families(observer.text().decode())
    return [sample.labels for family in families for sample in family.samples if sample.name == f"sglang:{name}"]


def test_the_size_of_the_pool_is_told_as_gateways_read_it() -> None:
    observer = PrometheusObserver()
    observer.on_start({"served_model_name": "demo", "components": {}, "page_size": 16, "max_total_tokens": 4096})
    assert labels_of(observer, "cache_config_info") == [{"model_name": "demo", "page_size": "16", "num_pages": "256"}]


def test_each_replica_has_a_pool_of_its_own() -> None:
    observer = PrometheusObserver()
    states = [{"max_total_tokens": 64}, {"max_total_tokens": 32}]
    observer.on_start({"served_model_name": "demo", "components": {}, "page_size": 1, "replica_states": states})
    assert [(labels["dp_rank"], labels["num_pages"]) for labels in labels_of(observer, "cache_config_info")] == [
        ("0", "64"),
        ("1", "32"),
    ]


def adapters_info(running: str, value: float = 5.0) -> MetricGauge:
    return MetricGauge("adapters_info", "Adapters.", (("running", running),), value)


def test_facts_of_extensions_replace_earlier_ones(observer: PrometheusObserver) -> None:
    observer.on_step(step(gauges=(adapters_info("a"), adapters_info("b"))))
    observer.on_step(step())  # extensions report gauges only about once per second
    assert [labels["running"] for labels in labels_of(observer, "adapters_info")] == ["a", "b"]
    observer.on_step(step(gauges=(adapters_info("b", 7.0),)))
    assert labels_of(observer, "adapters_info") == [{"model_name": "demo", "running": "b"}]
    assert 'running="b"} 7.0' in observer.text().decode()


def test_facts_of_one_replica_leave_those_of_another_alone() -> None:
    observer = PrometheusObserver()
    observer.on_start({"served_model_name": "demo", "components": {}, "replica_states": [{}, {}]})
    observer.on_step(step(gauges=(adapters_info("a"),)))
    observer.on_step(step(gauges=(adapters_info("b"),), replica=1))
    observer.on_step(step(gauges=(adapters_info(""),)))
    assert [(labels["dp_rank"], labels["running"]) for labels in labels_of(observer, "adapters_info")] == [
        ("1", "b"),
        ("0", ""),
    ]


def test_two_servers_in_one_process_do_not_meet(observer: PrometheusObserver) -> None:
    other = PrometheusObserver()
    other.on_start({"served_model_name": "demo", "components": {}})
    observer.on_step(step(running=5))
    assert values(other)["num_running_reqs"] == 0


def test_metrics_of_steps_name_their_replica_where_there_are_several() -> None:
    observer = PrometheusObserver(clock=lambda: 0.0)
    observer.on_start({"served_model_name": "demo", "components": {}, "replica_states": [{}, {}]})
    observer.on_step(step(running=2, prefill_tokens=10, cached_tokens=10, queue_seconds=(0.5,)))
    observer.on_step(step(running=3, prefill_tokens=30, cached_tokens=10, replica=1))
    observer.on_step(step(running=4, replica=1))
    observer.on_request(event())
    samples = {
        (sample.name.removeprefix("sglang:"), sample.labels.get("dp_rank")): sample.value
        for family in text_string_to_metric_families(observer.text().decode())
        for sample in family.samples
    }
    assert (samples["num_running_reqs", "0"], samples["num_running_reqs", "1"]) == (2, 4)
    assert (samples["cache_hit_rate", "0"], samples["cache_hit_rate", "1"]) == (0.5, 0.25)
    assert (samples["queue_time_seconds_count", "0"], samples["queue_time_seconds_count", "1"]) == (1, 0)
    assert samples["num_requests_total", None] == 1
    assert ("num_running_reqs", None) not in samples and ("num_requests_total", "0") not in samples


def test_the_label_of_replicas_is_there_if_only_one_has_started() -> None:
    observer = PrometheusObserver()
    observer.on_start({"served_model_name": "demo", "components": {}, "replica_states": [{}]})
    observer.on_step(step(running=3, replica=1))
    labels = {"model_name": "demo", "dp_rank": "1"}
    assert observer.registry.get_sample_value("sglang:num_running_reqs", labels) == 3
