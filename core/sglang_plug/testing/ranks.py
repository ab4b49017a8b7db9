"""Do several ranks compute what one computes?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sglang_plug.config import (
    AUTO,
    BackendOptions,
    CacheOptions,
    EngineConfig,
    ModelOptions,
    ParallelOptions,
    PluginOptions,
    ScheduleOptions,
)
from sglang_plug.engine.build import build_engine
from sglang_plug.engine.messages import Close, FromEngine, News, Submit, ToEngine
from sglang_plug.engine.pending import merge
from sglang_plug.engine.watchdog import Heartbeat
from sglang_plug.plugins import Plugins
from sglang_plug.request import LogprobOptions, Output, Request
from sglang_plug.sampling import SamplingParams

CHUNK = 16
LENGTHS = (1, 40, 9, CHUNK)
NEW_TOKENS = 6


def check_ranks(
    model: str = AUTO, *, size: int = 2, executor: str = "threads", device: str = "cpu", tolerance: float = 1e-3
) -> None:
    """Serve prompts with one rank, and with several, and compare tokens and log-probabilities, in float32.

    For authors of executors, and of models that say ``parallel=True``. Prompts are cut, share a prefix and are computed
    together; the ranks end with the engine.

    Args:
        model: folder of a checkpoint; ``auto``: what plugins serve where none is named.
        size: how many ranks.
        executor: name of what brings them up.
        device: of rank 0.
        tolerance: greatest difference of two log-probabilities.

    Raises:
        AssertionError: names the first prompt that differs, and how.
        ConfigError: the ranks cannot share the model, or cannot run here.
    """
    config = EngineConfig(
        model=ModelOptions(path=model, device=device, dtype="float32"),
        cache=CacheOptions(max_total_tokens=1024),
        schedule=ScheduleOptions(chunked_prefill_size=CHUNK),
        backends=BackendOptions(grammar="none"),
    )
    alone = _served(config)
    together = _served(replace(config, parallel=ParallelOptions(tp_size=size, executor=executor)))
    for id, expected in alone.items():
        found = together[id]
        where = f"{size} ranks of {executor!r} fail {id!r}"
        _compare(where, "prompt", expected.prompt_logprobs[1:], found.prompt_logprobs[1:], tolerance)
        if expected.tokens != found.tokens:
            raise AssertionError(f"{where}: one rank generates {expected.tokens}, they {found.tokens}")
        _compare(where, "output", expected.logprobs, found.logprobs, tolerance)


class _Desk:
    """Hands in all requests, and ends the engine once they are answered."""

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
        if isinstance(message, News):
            for output in message.outputs:
                self.outputs.setdefault(output.id, []).append(output)
                if output.finish is not None:
                    self.open.discard(output.id)


def _served(config: EngineConfig) -> dict[str, Output]:
    """What became of each request, by its id."""
    desk = _Desk()
    engine = build_engine(config, Plugins.discover(PluginOptions()), desk, desk.send, Heartbeat())
    for request in _requests(engine.info["vocab_size"]):
        desk.waiting.append(Submit(request))
        desk.open.add(request.id)
    engine.run()
    found = {}
    for id, parts in desk.outputs.items():
        whole = parts[0]
        for part in parts[1:]:
            whole = merge(whole, part)
        if whole.finish is None or whole.finish.reason != "length":
            raise AssertionError(f"{config.parallel.tp_size} ranks end {id!r} with {whole.finish}")
        found[id] = whole
    return found


def _requests(vocabulary: int) -> list[Request]:
    shared = tuple((7 * place + 3) % vocabulary for place in range(max(LENGTHS)))
    prompts = [shared[:length] for length in LENGTHS] + [(*shared[:30], *shared[:5])]
    params = SamplingParams(max_new_tokens=NEW_TOKENS, temperature=0.0)
    return [
        Request(id=f"prompt {number}", tokens=prompt, params=params, logprobs=LogprobOptions(start=0))
        for number, prompt in enumerate(prompts)
    ]


def _compare(where: str, what: str, expected: Iterable[object], found: Iterable[object], tolerance: float) -> None:
    for place, (one, other) in enumerate(zip(expected, found, strict=True)):
        left, right = (getattr(each, "logprob", None) for each in (one, other))
        if left is not None and right is not None and not abs(left - right) <= tolerance:
            raise AssertionError(f"{where}: log-probability {place} of the {what} is {right:.6f} instead of {left:.6f}")
