"""Prometheus metrics under the names that SGLang dashboards use."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from sglang_plug import MetricGauge, Observer, RequestEvent, StepStats

from .reported_metrics import ExtensionCounters, ExtensionGauges

CONTENT_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0)
GAUGES: Mapping[str, str] = {
    "num_running_reqs": "Requests being computed",
    "num_queue_reqs": "Requests waiting",
    "num_used_tokens": "KV slots that running requests hold",
    "num_cached_tokens": "KV slots that the prefix cache holds",
    "token_usage": "Share of the KV pool that running requests hold",
    "cache_hit_rate": "Share of admitted prompt tokens that came from the prefix cache, since the start",
    "gen_throughput": "Output tokens per second over the last second or more",
    "spec_accept_length": "Output tokens per sequence and decode step, since the start",
    "spec_accept_rate": "Share of draft tokens that were accepted, since the start",
}
COUNTERS: Mapping[str, str] = {
    "prompt_tokens_total": "Prompt tokens of finished requests",
    "generation_tokens_total": "Output tokens",
    "cached_tokens_total": "Prompt tokens that came from the prefix cache",
    "num_requests_total": "Requests ended, for whatever reason",
    "num_aborted_requests_total": "Requests that were aborted by their client or by an error",
    "forced_tokens_total": "Output tokens that were forced by a constraint (jump-forward)",
    "spec_drafted_tokens_total": "Draft tokens computed",
    "spec_accepted_tokens_total": "Draft tokens accepted",
    "deadline_met_total": "Requests that were complete by their deadline",
    "deadline_missed_total": "Requests that ended after their deadline, or with an error",
    "deadline_refused_total": "Requests that were not computed because they would have missed their deadline",
    "num_retracted_reqs_total": "Retractions: a running request was queued again because others needed its KV slots",
}
CACHE_CONFIG = "1, with the tokens of a page and the pages of the KV pool as labels"
OF_REPLICA = frozenset(
    (
        "num_running_reqs num_queue_reqs num_used_tokens num_cached_tokens token_usage cache_hit_rate "
        "spec_accept_length spec_accept_rate cached_tokens_total forced_tokens_total spec_drafted_tokens_total "
        "spec_accepted_tokens_total num_retracted_reqs_total queue_time_seconds"
    ).split()
)
"""Metrics of steps: with several replicas they have the label ``dp_rank``."""
HISTOGRAMS: Mapping[str, str] = {
    "queue_time_seconds": "From arrival to the step that begins to compute the request",
    "time_to_first_token_seconds": "From arrival to the first token",
    "inter_token_latency_seconds": "Between two tokens of one request",
    "e2e_request_latency_seconds": "From arrival to the end",
}


class PrometheusObserver(Observer):
    """Updates metrics in its own registry, so that several servers in one process do not collide.

    Args:
        clock: returns the time as ``time.time`` does.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.registry = CollectorRegistry()
        self._label = ""
        self._last: dict[str, float] = {}
        self._has_replicas = False
        self._totals: dict[int, _Totals] = {}
        self._window_start, self._window_tokens = 0.0, 0
        self._create()
        self._extension_counters = ExtensionCounters(self.registry)
        self._extension_gauges = ExtensionGauges(self.registry)
        self._plugins = Gauge(
            "sglang:plugin_info",
            "1 for each component in use",
            ["kind", "name", "plugin", "distribution", "version"],
            registry=self.registry,
        )

    def _create(self) -> None:
        def labels(name: str) -> list[str]:
            return ["model_name", "dp_rank"] if self._has_replicas and name in OF_REPLICA else ["model_name"]

        self._gauges = {
            name: Gauge(f"sglang:{name}", text, labels(name), registry=self.registry) for name, text in GAUGES.items()
        }
        self._counters = {
            name: Counter(f"sglang:{name}", text, labels(name), registry=self.registry)
            for name, text in COUNTERS.items()
        }
        self._histograms = {
            name: Histogram(f"sglang:{name}", text, labels(name), buckets=SECONDS, registry=self.registry)
            for name, text in HISTOGRAMS.items()
        }

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        self._measure_throughput(self._clock())
        return generate_latest(self.registry)

    def on_start(self, info: Mapping[str, Any]) -> None:
        """Label the metrics with the model, and report the components in use."""
        self._label = str(info["served_model_name"])
        self._has_replicas = "replica_states" in info  # also if only one of them has started yet
        if self._has_replicas:
            for metric in (*self._gauges.values(), *self._counters.values(), *self._histograms.values()):
                self.registry.unregister(metric)
            self._create()
        for metrics in (self._gauges, self._counters, self._histograms):
            for name, metric in metrics.items():
                for replica in range(len(info.get("replica_states", (None,)))):
                    metric.labels(*self._labels(name, replica))
        self._report_cache_config(info)
        for kind, component in info["components"].items():
            labels = (component["name"], component["plugin"], component["distribution"], component["version"])
            self._plugins.labels(kind, *labels).set(1)

    def _report_cache_config(self, info: Mapping[str, Any]) -> None:
        """Report the size of each replica's KV pool, which does not change."""
        if "page_size" not in info:  # an engine of another platform may not have pages
            return
        page_size = int(info["page_size"])
        for replica, state in enumerate(info.get("replica_states", (info,))):
            labels = (("page_size", str(page_size)), ("num_pages", str(int(state["max_total_tokens"]) // page_size)))
            fact = MetricGauge("cache_config_info", CACHE_CONFIG, labels)
            self._extension_gauges.record((fact,), self._label, replica if self._has_replicas else None)

    def on_step(self, stats: StepStats) -> None:
        """Update the gauges and the counters of steps."""
        replica = stats.replica
        totals = self._totals.setdefault(replica, _Totals())
        totals.admitted += stats.prefill_tokens + stats.cached_tokens
        totals.cached += stats.cached_tokens
        self._set("num_running_reqs", stats.running, replica)
        self._set("num_queue_reqs", stats.waiting, replica)
        self._set("num_used_tokens", stats.used_slots, replica)
        self._set("num_cached_tokens", stats.cached_slots, replica)
        self._set("token_usage", stats.used_slots / stats.capacity if stats.capacity else 0.0, replica)
        self._set("cache_hit_rate", totals.cached / totals.admitted if totals.admitted else 0.0, replica)
        self._add("cached_tokens_total", stats.cached_tokens, replica)
        self._add("forced_tokens_total", stats.forced_tokens, replica)
        self._add("num_retracted_reqs_total", stats.retracted, replica)
        self._record_speculation(stats, totals)
        rank = replica if self._has_replicas else None
        self._extension_counters.record(stats.counters, self._label, rank)
        self._extension_gauges.record(stats.gauges, self._label, rank)
        for seconds in stats.queue_seconds:
            self._observe("queue_time_seconds", seconds, replica)

    def _record_speculation(self, stats: StepStats, totals: _Totals) -> None:
        totals.decoded += stats.decode_sequences
        totals.drafted += stats.drafted_tokens
        totals.accepted += stats.accepted_tokens
        if not totals.drafted:
            return
        self._add("spec_drafted_tokens_total", stats.drafted_tokens, stats.replica)
        self._add("spec_accepted_tokens_total", stats.accepted_tokens, stats.replica)
        self._set("spec_accept_length", 1 + totals.accepted / totals.decoded, stats.replica)
        self._set("spec_accept_rate", totals.accepted / totals.drafted, stats.replica)

    def on_tokens(self, request: str, tokens: int, time: float) -> None:
        """Record the latency between tokens, and the throughput."""
        if not tokens:
            return
        self._add("generation_tokens_total", tokens)
        before = self._last.get(request)
        if before is not None:
            for _ in range(tokens):
                self._observe("inter_token_latency_seconds", (time - before) / tokens)
        self._last[request] = time
        self._window_tokens += tokens
        self._measure_throughput(time)

    def on_request(self, event: RequestEvent) -> None:
        """Record the totals of a request."""
        self._last.pop(event.id, None)
        self._add("num_requests_total", 1)
        self._add("prompt_tokens_total", event.prompt_tokens)
        if event.reason not in ("stop", "length"):
            self._add("num_aborted_requests_total", 1)
        if event.deadline:
            self._add(f"deadline_{event.deadline}_total", 1)
        if event.first_token is not None:
            self._observe("time_to_first_token_seconds", event.first_token - event.arrived)
        self._observe("e2e_request_latency_seconds", event.finished - event.arrived)

    def _measure_throughput(self, now: float) -> None:
        """Update the throughput. It also runs when metrics are read, since no other event follows the last token."""
        seconds = now - self._window_start
        if seconds < 1.0:
            return
        if self._window_start:
            self._set("gen_throughput", self._window_tokens / seconds)
        self._window_start, self._window_tokens = now, 0

    def _labels(self, name: str, replica: int) -> tuple[str, ...]:
        return (self._label, str(replica)) if self._has_replicas and name in OF_REPLICA else (self._label,)

    def _set(self, name: str, value: float, replica: int = 0) -> None:
        self._gauges[name].labels(*self._labels(name, replica)).set(value)

    def _add(self, name: str, value: float, replica: int = 0) -> None:
        if value:
            self._counters[name].labels(*self._labels(name, replica)).inc(value)

    def _observe(self, name: str, value: float, replica: int = 0) -> None:
        self._histograms[name].labels(*self._labels(name, replica)).observe(value)


@dataclass(slots=True)
class _Totals:
    """Sums over the steps of one replica."""

    admitted: int = 0
    cached: int = 0
    decoded: int = 0
    drafted: int = 0
    accepted: int = 0
