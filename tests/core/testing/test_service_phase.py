"""The conformance test of step extensions finds invalid metrics and information, and changes of shared objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from sglang_plug import (
    AdmissionPhase,
    MetricCounter,
    MetricGauge,
    MetricsPhase,
    Request,
    RequestError,
    SequenceView,
    ServicePhase,
    StepExtension,
    StepStats,
)
from sglang_plug.testing import check_step_extension

TOO_LONG = Request(id="100", tokens=(1,) * 31)


class Counts(StepExtension, AdmissionPhase, ServicePhase, MetricsPhase):
    """A correct extension, which counts requests and refuses long prompts."""

    def __init__(self) -> None:
        self.count = 0

    def admit(self, sequence: SequenceView) -> None:
        if sequence.prompt_len > 30:
            raise RequestError("the prompt is too long")

    def finished(self, sequence: SequenceView) -> None:
        self.count += 1

    def counters(self) -> Iterable[MetricCounter]:
        return [MetricCounter("counted_total", "requests", (), self.count)]

    def info(self) -> Mapping[str, Any]:
        return {"counted": self.count}


def test_a_correct_extension_passes() -> None:
    check_step_extension(Counts(), refused=[TOO_LONG])


class ReportsASet(Counts):
    def info(self) -> Mapping[str, Any]:
        return {"counted": {self.count}}


class CountsDown(Counts):
    def counters(self) -> Iterable[MetricCounter]:
        self.count -= 1
        return [MetricCounter("counted_total", "requests", (), self.count)]


class OtherName(Counts):
    def counters(self) -> Iterable[MetricCounter]:
        return [MetricCounter("counted", "requests", (), self.count)]


class GaugeWithTheNameOfATotal(Counts):
    def gauges(self) -> Iterable[MetricGauge]:
        return [MetricGauge("counted_total", "requests", ())]


class UnknownGauge(Counts):
    def gauges(self) -> Iterable[MetricGauge]:
        return [MetricGauge("counted", "requests", (), float("nan"))]


class NameWithSpace(Counts):
    def counters(self) -> Iterable[MetricCounter]:
        return [MetricCounter("requests-counted total_total", "requests", (), self.count)]


class LabelsInTurn(Counts):
    def gauges(self) -> Iterable[MetricGauge]:
        labels = (("kind", "a"), ("size", "b"))
        return [MetricGauge("counted", "requests", labels), MetricGauge("counted", "requests", labels[::-1])]


class ChangesStatistics(Counts):
    def step_done(self, stats: StepStats) -> None:
        stats.running += 1


class ClearsExtras(Counts):
    def finished(self, sequence: SequenceView) -> None:
        sequence.extras.clear()


class KeepsTheRefused(Counts):
    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    def admit(self, sequence: SequenceView) -> None:
        self.kept += [tuple(sequence.tokens)] if sequence.prompt_len > 30 else []
        super().admit(sequence)


@pytest.mark.planted_bug("step-extension")
@pytest.mark.parametrize(
    ("extension", "message"),
    [
        (ReportsASet(), r"info\(\) must return plain data for /server_info"),
        (CountsDown(), "it counts since the start"),
        (OtherName(), "'counted' must end with _total"),
        (GaugeWithTheNameOfATotal(), "'counted_total' must not end with _total"),
        (UnknownGauge(), "counted is nan, and must be finite"),
        (NameWithSpace(), "'requests-counted total_total' must consist of letters, digits and underscores"),
        (LabelsInTurn(), r"counted has the labels \['size', 'kind'\], and had \['kind', 'size'\]"),
        (ChangesStatistics(), r"step_done\(\) changed the statistics"),
        (ClearsExtras(), "extras of another extension were changed"),
        (KeepsTheRefused(), "the extension, which refuses them, keeps .* bytes of each request"),
    ],
)
def test_planted_bugs_are_named(extension: StepExtension, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_step_extension(extension, refused=[TOO_LONG])
