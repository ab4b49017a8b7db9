"""Fair sharing between callers, simulated: waiting times under a heavy caller, and the unfairness bound.

Run as ``python -m benchmarks.fairness``. The engine's own scheduler serves the requests; the durations of steps are
predicted, so that no model is computed (``benchmarks/common/simulation.py``). Two scenarios:

- *loaded*: 30 requests of an interactive caller during 500 long prompts of another;
- *day*: 200 callers over a day. The day is compressed: the load rises and falls as over 24 hours, in ``--seconds`` of
  virtual time and with as few requests as fit into them. Rates, queues and the sizes of requests are not scaled. The
  unfairness of every pair of callers is measured after every step.

``--plots FOLDER`` writes the figures of ``docs/scheduling.md``.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.common.report import parser, percentile, table, write_json
from benchmarks.common.simulation import Arrival, Engine, Served, Simulation
from sglang_plug import SchedulePolicy
from sglang_plug_api.benchmarking.svg import Line, plot
from sglang_plug_backends.schedule.callers import FairSettings, FairShare
from sglang_plug_backends.schedule.policies import FirstCome
from sglang_plug_backends.step_time.step_time_model import Coefficients, StepTimeModel

Costs = tuple[Coefficients, Coefficients]
COSTS: dict[str, Costs] = {
    "cpu": ((0.019, 0.001, 0.0), (1.0, 0.00106, 0.0)),
    "accelerator": ((0.015, 3e-5, 1e-7), (1.0, 2e-5, 4e-10)),
}
"""Coefficients of ``StepTimeModel``. Those of ``cpu`` follow from times in ``docs/benchmarks.md`` (shape 0.5B in
bfloat16, two cores with AVX-512): 20 ms for a decode step of one sequence, 27 ms for one of eight, 2.2 s for 2,048
tokens of a prompt. Those of ``accelerator`` are assumed, in the order of magnitude of a model of 8B on a large GPU."""
INTERACTIVE, HEAVY = "interactive", "heavy"
HEAVY_PROMPTS, HEAVY_PROMPT, HEAVY_OUTPUT = 500, 1500, 16
QUESTIONS, QUESTION, ANSWER = 30, 100, 16
CALLERS, BURSTS = 200, 6
"""Callers of a day, and how many of them send all of their requests of an hour at once."""
LONGEST_PROMPT, LONGEST_OUTPUT = 4000, 400
HOURS = 24
POLICIES: dict[str, type[SchedulePolicy]] = {"fcfs": FirstCome, "fair": FairShare}


def engine(costs: Costs) -> Engine:
    """Return an engine whose steps have these costs."""
    return Engine(costs=StepTimeModel(*costs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Figures of an interactive caller under the load of a heavy one; times in seconds of virtual time."""

    costs: str
    policy: str
    alone_p99: float
    loaded_median: float
    loaded_p99: float
    longest_step: float
    heavy_throughput: float
    """Tokens per second of the heavy caller, relative to those without the interactive one."""
    waits: tuple[float, ...]

    @property
    def limit(self) -> float:
        """Return the target: three times the time on an idle engine, and one step."""
        return 3 * self.alone_p99 + self.longest_step


def loaded(policy: str, costs: str, prompts: int = HEAVY_PROMPTS, count: int = QUESTIONS) -> Loaded:
    """Simulate an interactive caller alone, a heavy one alone, and both."""

    def simulation() -> Simulation:
        return Simulation(engine(COSTS[costs]), POLICIES[policy]())

    heavy = [Arrival(0.0, HEAVY, HEAVY_PROMPT, HEAVY_OUTPUT) for _ in range(prompts)]
    undisturbed = simulation().run(heavy)
    every = _end(undisturbed) / (count + 1)
    questions = [Arrival(every * (number + 0.5), INTERACTIVE, QUESTION, ANSWER) for number in range(count)]
    alone = simulation().run(questions)
    both = simulation()
    served = both.run(sorted((*heavy, *questions), key=lambda arrival: arrival.time))
    waits = tuple(request.wait for request in served if request.arrival.caller == INTERACTIVE)
    heavy_served = [request for request in served if request.arrival.caller == HEAVY]
    return Loaded(
        costs=costs,
        policy=policy,
        alone_p99=percentile((request.wait for request in alone), 0.99),
        loaded_median=percentile(waits, 0.5),
        loaded_p99=percentile(waits, 0.99),
        longest_step=both.longest_step,
        heavy_throughput=_end(undisturbed) / _end(heavy_served),
        waits=waits,
    )


def _end(served: Sequence[Served]) -> float:
    return max(math.inf if request.finished is None else request.finished for request in served)


def day(seconds: float, costs: Costs, callers: int = CALLERS, load: float = 0.9, seed: int = 1) -> list[Arrival]:
    """Return a trace in which the load rises and falls as over a day.

    Callers differ: their parts of the load fall with their rank, and the first ``BURSTS`` send their requests of an
    hour at once. ``load`` is the mean part of the engine's time that is needed.
    """
    generator = random.Random(seed)
    parts = [1 / (1 + rank) for rank in range(callers)]
    needed, trace = load * seconds, list[Arrival]()
    while needed > 0:
        rank = generator.choices(range(callers), parts)[0]
        hour = generator.choices(range(HOURS), [_demand(hour) for hour in range(HOURS)])[0]
        within = 0.0 if rank < BURSTS else generator.random()
        prompt_len = min(LONGEST_PROMPT, int(generator.lognormvariate(5.5 if rank % 2 else 6.5, 0.8)) + 1)
        output_len = min(LONGEST_OUTPUT, int(generator.lognormvariate(4.0, 0.8)) + 1)
        arrival = Arrival((hour + within) * seconds / HOURS, f"caller {rank}", prompt_len, output_len)
        trace.append(arrival)
        needed -= _device_seconds(arrival, costs)
    return sorted(trace, key=lambda item: item.time)


def _demand(hour: int) -> float:
    """Return the load in an hour of the day, relative to the mean: little at night, most in the afternoon."""
    return 1 + 0.8 * math.sin(2 * math.pi * (hour - 9) / HOURS)


def _device_seconds(arrival: Arrival, costs: Costs, together: int = 16) -> float:
    """Return about how long a request occupies the engine, if ``together`` sequences decode at once."""
    (step, sequence, context_token), (_, prompt_token, pair) = costs
    length = arrival.prompt_len
    decoding = step / together + sequence + context_token * (length + arrival.output_len / 2)
    return length * prompt_token + 0.5 * length**2 * pair + arrival.output_len * decoding


class Unfairness:
    """Measures by how much the service of two callers differs while both have requests in the queue.

    Args:
        callers: compared with each other, each with all others.
    """

    def __init__(self, callers: Iterable[str]) -> None:
        self._names = list(callers)
        size = len(self._names)
        self._low, self._high = np.zeros((size, size)), np.zeros((size, size))
        self._together = np.zeros((size, size), dtype=bool)
        """Pairs that both had waiting requests after the last step; the ranges of the others are void."""
        self.largest = 0.0
        """Largest difference in any interval, in input tokens."""
        self.history: list[tuple[float, float]] = []
        """Time, and the largest difference of a pair in the interval up to then."""

    def measure(self, simulation: Simulation) -> None:
        """Measure after a step."""
        names, worst = simulation.backlogged(), 0.0
        waiting = np.array([name in names for name in self._names])
        self._together[~waiting] = self._together[:, ~waiting] = False
        if waiting.sum() > 1:
            service = np.array([simulation.service.weighted(name) for name in self._names if name in names])
            difference, pairs = service[:, None] - service, np.ix_(waiting, waiting)
            together = self._together[pairs]
            low = np.where(together, np.minimum(self._low[pairs], difference), difference)
            high = np.where(together, np.maximum(self._high[pairs], difference), difference)
            self._low[pairs], self._high[pairs], self._together[pairs] = low, high, True
            worst = float((high - low).max())
        self.largest = max(self.largest, worst)
        self.history.append((simulation.now, worst))


def bound(simulated: Engine, longest_prompt: int, settings: FairSettings | None = None) -> float:
    """Return the bound of Sheng et al. for two callers with waiting requests: twice the larger of two amounts.

    These are the longest prompt, and as many output tokens as the KV pool holds, each times its price.
    """
    prices = settings or FairSettings()
    return 2 * max(prices.input_weight * longest_prompt, prices.output_weight * simulated.slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """Figures of a day."""

    policy: str
    requests: int
    steps: int
    light_median: float
    """Median seconds to the first token of the callers that are not among the heavy ones."""
    light_p99: float
    heavy_p99: float
    unfairness: float
    """Largest difference of the service of two callers in an interval in which both had waiting requests."""
    bound: float
    seconds: float
    """Virtual time at which the last request was complete."""


def simulate_day(policy: str, costs: Costs, trace: Sequence[Arrival]) -> tuple[Day, list[Served], Unfairness]:
    """Serve a trace to its end."""
    simulated = engine(costs)
    unfairness = Unfairness(f"caller {rank}" for rank in range(CALLERS))
    simulation = Simulation(simulated, POLICIES[policy]())
    served = simulation.run(trace, after_step=unfairness.measure)
    heavy = {f"caller {rank}" for rank in range(BURSTS)}
    light = [request.wait for request in served if request.arrival.caller not in heavy]
    result = Day(
        policy=policy,
        requests=len(served),
        steps=simulation.steps,
        light_median=percentile(light, 0.5),
        light_p99=percentile(light, 0.99),
        heavy_p99=percentile((request.wait for request in served if request.arrival.caller in heavy), 0.99),
        unfairness=unfairness.largest,
        bound=bound(simulated, LONGEST_PROMPT),
        seconds=simulation.now,
    )
    return result, served, unfairness


def hourly_p95(served: Iterable[Served], seconds: float) -> list[tuple[float, float]]:
    """Return each hour with the 95th percentile of the first-token times of light callers that arrived in it."""
    heavy = {f"caller {rank}" for rank in range(BURSTS)}
    by_hour: dict[int, list[float]] = {hour: [] for hour in range(HOURS)}
    for request in served:
        if request.arrival.caller not in heavy:
            by_hour[min(HOURS - 1, int(request.arrival.time * HOURS / seconds))].append(request.wait)
    return [(hour + 0.5, percentile(waits, 0.95)) for hour, waits in by_hour.items() if waits]


def thinned(points: Sequence[tuple[float, float]], count: int = 240) -> list[tuple[float, float]]:
    """Return the largest value of each of ``count`` parts of ``points``."""
    size = max(1, math.ceil(len(points) / count))
    return [max(points[start : start + size], key=lambda point: point[1]) for start in range(0, len(points), size)]


def write_plots(
    folder: Path, seconds: float, loads: Sequence[Loaded], days: dict[str, tuple[Day, list[Served], Unfairness]]
) -> None:
    """Write the figures as SVG files."""
    folder.mkdir(parents=True, exist_ok=True)
    cumulative = [
        Line(
            f"{result.policy}, {result.costs}",
            [(wait, (rank + 1) / len(result.waits)) for rank, wait in enumerate(sorted(result.waits))],
        )
        for result in loads
    ]
    (folder / "first-token.svg").write_text(
        plot(cumulative, "seconds to the first token", "part of the interactive requests", log_x=True)
    )
    hourly = [Line(policy, hourly_p95(served, seconds)) for policy, (_, served, _) in days.items()]
    (folder / "day.svg").write_text(
        plot(hourly, "hour of the compressed day", "p95 seconds to the first token, light callers", log_y=True)
    )
    hours = {
        policy: [(when * HOURS / seconds, value + 1) for when, value in thinned(unfairness.history)]
        for policy, (_, _, unfairness) in days.items()
    }
    end = max(when for points in hours.values() for when, _ in points)
    lines = [*(Line(policy, points) for policy, points in hours.items())]
    lines.append(Line("bound", [(0.0, next(iter(days.values()))[0].bound), (end, next(iter(days.values()))[0].bound)]))
    (folder / "unfairness.svg").write_text(
        plot(lines, "hour of the compressed day", "difference of service, in input tokens", log_y=True)
    )


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=7200.0, help="virtual length of the compressed day")
    options.add_argument("--load", type=float, default=0.9, help="mean part of the engine's time that is needed")
    options.add_argument("--costs", choices=sorted(COSTS), default="cpu", help="durations of steps of the day")
    options.add_argument("--plots", type=Path, help="folder for the figures")
    args = options.parse_args()
    started = time.perf_counter()
    loads = [loaded(policy, costs) for costs in COSTS for policy in POLICIES]
    header = ("costs", "policy", "alone p99 s", "loaded median s", "loaded p99 s", "target s", "heavy throughput")
    rows = [
        (
            result.costs,
            result.policy,
            result.alone_p99,
            result.loaded_median,
            result.loaded_p99,
            result.limit,
            result.heavy_throughput,
        )
        for result in loads
    ]
    print(table(header, rows))
    costs = COSTS[args.costs]
    trace = day(args.seconds, costs, load=args.load)
    days = {policy: simulate_day(policy, costs, trace) for policy in POLICIES}
    header = ("policy", "requests", "steps", "light median s", "light p99 s", "heavy p99 s", "unfairness", "bound")
    print(table(header, [tuple(asdict(result).values())[:8] for result, _, _ in days.values()]))
    print(f"{time.perf_counter() - started:.0f} seconds")
    if args.plots:
        write_plots(args.plots, args.seconds, loads, days)
    if args.json:
        write_json(args.json, [*loads, *(result for result, _, _ in days.values())])


if __name__ == "__main__":
    main()
