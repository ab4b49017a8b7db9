"""Fixtures for all tests: tiny random models of every family, created once, and engines that serve them."""

from __future__ import annotations

import asyncio
import atexit
import functools
import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from sglang_plug import EngineClient, EngineConfig, Output, Plugins, Request
from sglang_plug.clients.thread_client import ThreadClient
from sglang_plug.engine import loop
from sglang_plug_backends.structured_outputs import build

from .compiling import InProcessCompiler
from .interpreted_process import InterpretedProcess, is_interpreted, triton_is_interpreted
from .reaper import Reaper
from .surroundings import clear_server_environment, seed

if TYPE_CHECKING:
    from .tiny_model import TinyModel

# Triton decides when it is imported whether kernels are compiled. Here they are; see ``interpreted_process``.
os.environ.setdefault("TRITON_INTERPRET", "0")

# How long an example takes depends on the load of the machine. The examples are the same each time, but not in
# ``make fuzz``.
without_deadline: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("repeatable", **without_deadline, derandomize=True, database=None)
settings.register_profile("random", **without_deadline, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

MANY_MODULES = 100
REAPER = pytest.StashKey[Reaper]()
INTERPRETED = pytest.StashKey[InterpretedProcess]()
KEPT_MODULES = pytest.StashKey[int]()
COLLECT_ALL = loop._collect_all


def pytest_configure(config: pytest.Config) -> None:
    """Set up the environment and the helper processes, before tests are collected."""
    clear_server_environment()
    config.stash[REAPER] = Reaper()
    config.stash[INTERPRETED] = InterpretedProcess()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the helper processes after the last test."""
    config.stash[INTERPRETED].close()
    config.stash[REAPER].close()
    atexit.register(gc.unfreeze)  # after pytest has collected several times; libraries count what is left at the end


WHOLE_ENGINE = frozenset({"serve", "tiny_model", "app", "apps", "vision_model", "vision_server"})
"""Fixtures that serve a model, or create a checkpoint of a family."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that ``make test-quick`` leaves out because they serve a model, and run the longest tests first.

    Those of plugins install them; at the end, one worker would run them while the others have nothing to do.
    """
    items.sort(key=lambda item: not item.nodeid.startswith("tests/plugins/"))
    for item in items:
        if not WHOLE_ENGINE.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker("whole_engine")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Disable the garbage collector during the collection, and freeze the imported modules and tests afterwards,
    because scanning these permanent objects again and again would take longer than many tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        _keep_modules(session.config)
        gc.enable()


def _keep_modules(config: pytest.Config) -> None:
    """Exclude all existing objects, mostly modules, from later garbage collections."""
    gc.collect()
    gc.freeze()
    config.stash[KEPT_MODULES] = len(sys.modules)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test with interpreted kernels in another process, if the kernels of this process are compiled."""
    if not is_interpreted(item) or triton_is_interpreted():
        return None
    following = nextitem if nextitem is not None and is_interpreted(nextitem) else None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in item.config.stash[INTERPRETED].run(item, following):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed the random generators before the fixtures of a test, whatever their scope, and freeze newly imported
    modules."""
    if len(sys.modules) > item.config.stash[KEPT_MODULES] + MANY_MODULES:  # tests before have imported libraries
        _keep_modules(item.config)
    seed()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyModel]:
    """Return ``tiny_model(family)``, which creates a checkpoint at its first use."""

    @functools.cache
    def make(family: str) -> TinyModel:
        from .tiny_model import make_tiny_model  # imports transformers, which most tests do not need

        return make_tiny_model(family, tmp_path_factory.mktemp(family))

    return make


class Served:
    """An engine that a test drives without a running event loop."""

    def __init__(self, client: EngineClient) -> None:
        self.client = client
        self.runner = asyncio.Runner()
        try:
            self.info = dict(self.runner.run(client.start()))
        except BaseException:
            self.runner.close()
            raise

    def outputs(self, requests: Sequence[Request]) -> list[Output]:
        """Serve requests at the same time; return one merged output for each, or raise the first error."""
        outcomes: list[Any] = self.outcomes(requests)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return outcomes

    def outcomes(self, requests: Sequence[Request]) -> list[Output | BaseException]:
        """Serve requests like ``outputs``, and return each request's error instead of its output."""

        async def outcome_of(request: Request) -> Output:
            from sglang_plug.clients.pending import merge

            whole: Output | None = None
            async for output in self.client.submit(request):
                whole = output if whole is None else merge(whole, output)
            assert whole is not None
            return whole

        async def every() -> list[Output | BaseException]:
            return await asyncio.gather(*map(outcome_of, requests), return_exceptions=True)

        return self.runner.run(every())

    def control(self, name: str, **arguments: Any) -> Any:
        """Return the result of a control call."""
        return self.runner.run(self.client.control(name, **arguments))

    def close(self) -> None:
        """Stop the engine."""
        self.runner.run(self.client.close())
        self.runner.close()


@pytest.fixture(scope="session", autouse=True)
def engines_of_this_process() -> Iterator[None]:
    """Let engines in this process respect the frozen objects, and compile grammars without another process.

    The process that servers have for grammars takes seconds to start, and has tests of its own.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "_collect_all", gc.collect)
        patch.setattr(build, "BackendCompiler", InProcessCompiler)
        yield


@pytest.fixture
def nothing_frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the garbage collector scan all objects, as in a process that has frozen nothing."""
    monkeypatch.setattr(loop, "_collect_all", COLLECT_ALL)
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.fixture(scope="session")
def installed_plugins() -> Plugins:
    """The plugins of the default configuration, discovered once because discovery takes as long as many tests."""
    return Plugins.discover()


@pytest.fixture
def serve(installed_plugins: Plugins) -> Iterator[Callable[..., Served]]:
    """Return ``serve(config)``, which starts an engine in a thread, or another client, and closes it after the test."""
    engines: list[Served] = []

    def start(config: EngineConfig, client: Callable[[EngineConfig, Plugins], EngineClient] = ThreadClient) -> Served:
        is_plain = config.plugins == installed_plugins.options
        plugins = installed_plugins.with_own_lifecycle() if is_plain else Plugins.discover(config.plugins)
        engines.append(Served(client(config, plugins)))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()
