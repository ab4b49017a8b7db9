"""Measurement of what plugins cost while they declare components: heavy imports and waiting, in a fresh process.

A declaring module is imported by every command, so a heavy import there delays even ``--help``. One that sleeps, or
waits for a disk or a network, uses no processor time and delays every command all the same. The time of waiting is the
elapsed time less the processor time. A busy machine lengthens it: it is compared with that of other work, and the least
of several measurements counts.
"""

from __future__ import annotations

import dataclasses
import importlib.machinery
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

from sglang_plug.config import ConfigError
from sglang_plug.plugins.hookspecs import hookimpl
from sglang_plug.plugins.installed.discovery import DiscoveredPlugin
from sglang_plug.system.child_process import child_environment, python_command

HEAVY = (
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "triton",
    "flashinfer",
    "jax",
    "fastapi",
    "uvicorn",
    "pydantic",
)
LONGEST_WAIT = 1.0
"""Seconds that a plugin may wait while it declares."""
BUSY_FACTOR = 3.0
"""Further waiting that is allowed, in units of what the machine adds to the same amount of computing."""
CALIBRATION = 0.05
"""Seconds of computing by which the machine is judged."""
MEASUREMENTS = 3


@dataclass(frozen=True, slots=True)
class DeclarationCost:
    """The costs of a plugin while it declares."""

    heavy: tuple[str, ...] = ()
    """Heavy libraries that it imports."""
    waited: float = 0.0
    """Seconds of waiting, if they are too many, else 0."""
    module: str = ""
    """The module, or the hook, that waited longest."""


def declaration_costs(plugins: Sequence[DiscoveredPlugin]) -> dict[DiscoveredPlugin, DeclarationCost]:
    """Measure each plugin; one that fails counts up to its failure.

    Raises ``ConfigError`` if the measuring process fails.
    """
    if not plugins:
        return {}
    heavy, measured = _measure(plugins)  # nearly always: one process instead of one per plugin
    costs = {}
    for plugin, first in zip(plugins, measured, strict=True):
        imported = _measure([plugin])[0] if heavy else []
        waited = first
        for _ in range(MEASUREMENTS - 1):
            if waited.excess > 0:
                waited = min(waited, _measure([plugin])[1][0], key=lambda cost: cost.excess)
        is_slow = waited.excess > 0
        costs[plugin] = DeclarationCost(
            tuple(imported), waited.waited if is_slow else 0.0, waited.module if is_slow else ""
        )
    return costs


@dataclass(frozen=True, slots=True)
class _Waiting:
    waited: float
    excess: float
    """Seconds beyond what is allowed."""
    module: str


def _measure(plugins: Sequence[DiscoveredPlugin]) -> tuple[list[str], list[_Waiting]]:
    """Return the heavy libraries of all plugins together, and the waiting of each."""
    work = json.dumps({"path": sys.path, "plugins": [dataclasses.asdict(plugin) for plugin in plugins]})
    command, environment = python_command(__name__), child_environment()
    process = subprocess.run(command, input=work, capture_output=True, text=True, env=environment)
    if process.returncode:
        raise ConfigError(
            f"measuring declarations failed: {process.stderr.strip() or f'exit status {process.returncode}'}"
        )
    answer: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    busy = answer["busy"]
    waiting = []
    for item in answer["plugins"]:
        waited = max(0.0, item["elapsed"] - item["computed"])
        allowed = LONGEST_WAIT + BUSY_FACTOR * busy * item["computed"]
        waiting.append(_Waiting(waited, waited - allowed, item["module"]))
    return answer["heavy"], waiting


class _ModuleTimes:
    """Seconds of waiting of each module's own code, without the modules that it imports."""

    def __init__(self) -> None:
        self.waited: dict[str, float] = {}
        self._inner: list[float] = []
        """Waiting of the modules that the ones in progress have imported."""

    def measure(self, name: str, work: Callable[[], object]) -> None:
        """Do ``work`` and note under ``name`` how long it waited."""
        self._inner.append(0.0)
        began, computed = time.monotonic(), time.process_time()
        try:
            work()
        finally:
            waited = time.monotonic() - began - (time.process_time() - computed)
            self.waited[name] = self.waited.get(name, 0.0) + waited - self._inner.pop()
            if self._inner:
                self._inner[-1] += waited

    @contextmanager
    def of_imports(self) -> Iterator[None]:
        """Measure every module that is executed inside the context."""
        loader = importlib.machinery.SourceFileLoader
        execute = loader.exec_module

        def exec_module(self_: importlib.machinery.SourceFileLoader, module: ModuleType) -> None:
            self.measure(f"module {module.__name__}", lambda: execute(self_, module))

        loader.exec_module = exec_module  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            loader.exec_module = execute  # type: ignore[method-assign]

    @property
    def longest(self) -> str:
        """Name of what waited longest; empty if nothing was measured."""
        return max(self.waited, key=lambda name: self.waited[name], default="")


def _declare(plugin: DiscoveredPlugin, times: _ModuleTimes) -> None:
    module = plugin.load()
    marker = f"{hookimpl.project_name}_impl"
    for name, function in vars(module).items():
        if name.startswith("register_") and hasattr(function, marker):
            times.measure(f"hook {name} of {plugin.module}", partial(_list, function))


def _list(hook: Callable[[], Iterable[object] | None]) -> None:
    list(hook() or ())


def _busy() -> float:
    """Return the seconds that the machine adds to one second of computing."""
    began, computed = time.monotonic(), time.process_time()
    while (used := time.process_time() - computed) < CALIBRATION:
        sum(range(1000))
    return max(0.0, (time.monotonic() - began) / used - 1.0)


def main() -> None:
    """Read plugins from stdin, declare them, and print what they cost."""
    work = json.load(sys.stdin)
    sys.path[:] = work["path"]
    before = set(sys.modules)
    busy = _busy()
    rows = []
    for plugin in work["plugins"]:
        times = _ModuleTimes()
        began, computed = time.monotonic(), time.process_time()
        try:
            with times.of_imports():
                _declare(DiscoveredPlugin(**plugin), times)
        except Exception as error:  # discovery has reported it with its cause
            print(f"{plugin['name']}: {error}", file=sys.stderr)
        elapsed, used = time.monotonic() - began, time.process_time() - computed
        rows.append({"elapsed": elapsed, "computed": used, "module": times.longest})
    heavy = [name for name in HEAVY if name in sys.modules and name not in before]
    print(json.dumps({"heavy": heavy, "busy": busy, "plugins": rows}))


if __name__ == "__main__":
    main()
