"""Conformance test of tensor parallelism: several ranks must compute the same as one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sglang_plug.clients.pending import merge
from sglang_plug.config import (
    AUTO,
    BackendOptions,
    CacheOptions,
    ConfigError,
    EngineConfig,
    ModelOptions,
    ParallelOptions,
    PluginOptions,
    ScheduleOptions,
)
from sglang_plug.contracts.request import LogprobOptions, Output, Request
from sglang_plug.contracts.sampling_params import SamplingParams
from sglang_plug.engine.messages.api_messages import Close, FromEngine, StepOutputs, Submit, ToEngine
from sglang_plug.engine.startup.build import build_engine
from sglang_plug.engine.watchdog import Heartbeat
from sglang_plug.plugins.registry import Plugins
from sglang_plug.testing.rank_groups.group import check_rank_group
from sglang_plug.testing.time_limit import within

CHUNK = 16
LENGTHS = (1, 40, 9, CHUNK)
NEW_TOKENS = 6
TIMEOUT_SECONDS = 300.0
RANKS_ON_CPU = 3
"""Ranks without a model: with two, neither the order of summands nor a missing rank would be noticed."""


def check_ranks(
    model: str = AUTO,
    *,
    size: int = 2,
    executor: str = "threads",
    device: str = "cpu",
    tolerance: float = 1e-3,
    timeout: float = TIMEOUT_SECONDS,
) -> None:
    """Serve prompts with one rank, and with several, and compare tokens and log-probabilities, in float32.

    For authors of executors, and of models with ``parallel=True``. Prompts are chunked, share a prefix and are computed
    together; the ranks end with the engine. Then ranks without a model check the collective operations with several
    dtypes, and the order of messages; one of them fails, which has to be noticed, and all have to end.

    Args:
        model: folder of a checkpoint; ``auto``: the model that plugins serve by default.
        size: number of ranks.
        executor: name of the executor that starts them.
        device: device of rank 0.
        tolerance: greatest difference of two log-probabilities.
        timeout: seconds that the ranks may take together, from their start to their end. Give more for a large model.

    Raises:
        AssertionError: names the first prompt that differs, and how; or the ranks do not end in time, for example
            because they wait for each other.
        ConfigError: the ranks cannot share the model, or cannot run here.
    """
    config = EngineConfig(
        model=ModelOptions(path=model, device=device, dtype="float32"),
        cache=CacheOptions(max_total_tokens=1024),
        schedule=ScheduleOptions(chunked_prefill_size=CHUNK),
        backends=BackendOptions(grammar="none"),
    )
    alone = _served(config)
    shared = replace(config, parallel=ParallelOptions(tp_size=size, executor=executor))
    together = _served_in_time(shared, timeout)
    for id, expected in alone.items():
        actual = together[id]
        where = f"{size} ranks of {executor!r} fail {id!r}"
        _compare(where, "prompt", expected.prompt_logprobs[1:], actual.prompt_logprobs[1:], tolerance)
        if expected.tokens != actual.tokens:
            raise AssertionError(f"{where}: one rank generates {expected.tokens}, they {actual.tokens}")
        _compare(where, "output", expected.logprobs, actual.logprobs, tolerance)
    check_rank_group(executor, max(size, RANKS_ON_CPU) if device == "cpu" else size, device, timeout)


class _Desk:
    """Submits all requests, and ends the engine once they are answered."""

    def __init__(self) -> None:
        self.waiting: list[ToEngine] = []
        self.outputs: dict[str, list[Output]] = {}
        self.open: set[str] = set()

    def take(self, wait: bool, timeout: float | None = None) -> Iterable[ToEngine]:
        if not self.waiting and not self.open:
            return [Close()]
        taken, self.waiting = self.waiting, []
        return taken

    def send(self, message: FromEngine) -> None:
        if isinstance(message, StepOutputs):
            for output in message.outputs:
                self.outputs.setdefault(output.id, []).append(output)
                if output.finish is not None:
                    self.open.discard(output.id)


def _served(config: EngineConfig) -> dict[str, Output]:
    """Serve the requests and return the merged output of each, by its id."""
    desk = _Desk()
    engine = build_engine(config, Plugins.discover(PluginOptions()), desk, desk.send, Heartbeat())
    for request in _requests(engine.info["vocab_size"]):
        desk.waiting.append(Submit(request))
        desk.open.add(request.id)
    engine.run()
    results = {}
    for id, parts in desk.outputs.items():
        output = parts[0]
        for part in parts[1:]:
            output = merge(output, part)
        if output.finish is None or output.finish.reason != "length":
            raise AssertionError(f"{config.parallel.tp_size} ranks end {id!r} with {output.finish}")
        results[id] = output
    return results


def _served_in_time(config: EngineConfig, timeout: float) -> dict[str, Output]:
    """Serve the requests with several ranks; raise ``AssertionError`` if they fail, or take too long."""
    ranks = f"{config.parallel.tp_size} ranks of {config.parallel.executor!r}"
    try:
        return within(timeout, lambda: _served(config), f"serving with {ranks}")
    except (AssertionError, ConfigError):
        raise
    except Exception as error:
        raise AssertionError(f"{ranks} fail: {type(error).__name__}: {error}") from error


def _requests(vocabulary: int) -> list[Request]:
    shared = tuple((7 * position + 3) % vocabulary for position in range(max(LENGTHS)))
    prompts = [shared[:length] for length in LENGTHS] + [(*shared[:30], *shared[:5])]
    params = SamplingParams(max_new_tokens=NEW_TOKENS, temperature=0.0)
    return [
        Request(id=f"prompt {number}", tokens=prompt, params=params, logprobs=LogprobOptions(start=0))
        for number, prompt in enumerate(prompts)
    ]


def _compare(where: str, part: str, expected: Iterable[object], actual: Iterable[object], tolerance: float) -> None:
    for position, (expected_item, item) in enumerate(zip(expected, actual, strict=True)):
        left, right = (getattr(each, "logprob", None) for each in (expected_item, item))
        if left is not None and right is not None and not abs(left - right) <= tolerance:
            raise AssertionError(
                f"{where}: log-probability {position} of the {part} is {right:.6f} instead of {left:.6f}"
            )
