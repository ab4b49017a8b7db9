"""Fixtures: pages of real servers in headless Chromium, driven by Selenium; tests are skipped if either is missing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.routes.pooling.conftest import tiny
from tests.e2e.conftest import encoder, environment, pytest_runtest_makereport, server, shared_launcher
from tests.e2e.servers import Server
from tests.e2e.test_reasoned_constraints import PARSER
from tests.e2e.vision_models import make_vision_model

__all__ = ["encoder", "environment", "pytest_runtest_makereport", "server", "shared_launcher", "tiny"]

KEY = "clé of the tests"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """The browser of all tests, each of which opens its page anew."""
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (Debian: apt-get install chromium chromium-driver)")
    from .page import start_browser

    browser = start_browser()
    yield browser
    browser.quit()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """The browser's page, whose console must have no error and whose requests must go to the opened server only."""
    from .page import Page

    page = Page(browser)
    yield page
    page.check()


@pytest.fixture(scope="session")
def keyed(shared_launcher: Any, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A server with an API key, whose parser takes the first sentence of an output for reasoning."""
    file: Path = tmp_path_factory.mktemp("parser") / "sentence.py"
    file.write_text(PARSER)
    launched: Server = shared_launcher("--api-key", KEY, "--plugin", str(file), "--reasoning-parser", "sentence")
    return launched


@pytest.fixture(scope="session")
def vision_server(shared_launcher: Any, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A server of a vision-language model with random weights, whose outputs take minutes unless they are stopped."""
    model = make_vision_model("qwen2.5-vl", tmp_path_factory.mktemp("qwen2.5-vl-tiny"))
    path = model.path / "config.json"
    config = json.loads(path.read_text())
    config["text_config"]["max_position_embeddings"] = 100_000
    path.write_text(json.dumps(config))
    launched: Server = shared_launcher(
        "--model-path", str(model.path), "--dtype", "float32", "--max-total-tokens", "110000"
    )
    return launched


@pytest.fixture(scope="session")
def reranker(shared_launcher: Any, tiny: Callable[[str], Any]) -> Server:
    """A server of a cross-encoder with random weights."""
    launched: Server = shared_launcher("--model-path", str(tiny("bert-reranker").path), "--is-embedding")
    return launched
