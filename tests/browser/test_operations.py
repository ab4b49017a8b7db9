"""Tests of the operations page while requests run."""

from __future__ import annotations

import concurrent.futures
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import KEY
from .page import Page

QUESTION = "What is the capital of Peru?"


@pytest.fixture
def load(vision_server: Any) -> Iterator[None]:
    """Three requests that run as long as the test, because their outputs end only at the context length."""
    body = {"messages": [{"role": "user", "content": "Tell me everything."}], "ignore_eos": True, "temperature": 0}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for number in range(3):
            pool.submit(vision_server.post, "/v1/chat/completions", {**body, "rid": f"load-{number}"})
        yield
        for number in range(3):
            vision_server.post("/abort_request", {"rid": f"load-{number}"})
    vision_server.wait_whole()


def open_operations(page: Page, url: str) -> Page:
    page.open(url, "/playground/operations")
    page.until(lambda: page.all("#slots li"), "the KV slots")
    return page


def test_load_slots_cache_and_requests_are_shown(page: Page, vision_server: Any, load: None) -> None:
    open_operations(page, vision_server.url)
    plot = "#plots figure:first-child svg"
    page.until(lambda: page.all(plot)[0].get_attribute("aria-label") == "Requests: running 3, waiting 0", "the load")
    page.until(lambda: len(page.all("#requests tbody tr")) == 3, "the requests")
    assert "load-0" in page.id("requests").text
    assert "running requests:" in page.id("slots").text
    page.until(lambda: page.all("#cache rect.locked"), "the prefix that the requests share")
    third = "#plots figure:nth-child(3)"
    has_line = (
        "return [...document.querySelectorAll(arguments[0])].some((path) => path.getAttribute('d').includes('L'))"
    )
    page.until(lambda: page.all(third + " path") and page.script(has_line, third + " path"), "a line of the throughput")
    assert "tokens/s" in page.all(third)[0].text
    assert "Tell me everything" not in page.browser.page_source, "prompts are not shown"


def test_latencies_are_drawn_while_requests_come(page: Page, server: Any) -> None:
    body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 8, "ignore_eos": True}
    open_operations(page, server.url)
    paths = "[...document.querySelectorAll(arguments[0])].map((path) => path.getAttribute('d'))"
    line_count = f"return {paths}.filter((text) => text.includes('L')).length"
    for title, figure in (("Time to first token", 5), ("Time between tokens", 6)):
        selector = f"#plots figure:nth-child({figure})"
        assert title in page.all(selector)[0].text

        def both_lines(selector: str = selector) -> bool:
            server.post("/v1/chat/completions", body)
            return bool(page.script(line_count, f"{selector} path") >= 2)

        page.until(both_lines, f"median and 95 % of {title}")
        label = page.all(f"{selector} svg")[0].get_attribute("aria-label")
        assert label.startswith(title) and "median" in label and "–" not in label


def test_a_request_that_waits_is_in_the_queue(page: Page, shared_launcher: Any) -> None:
    server = shared_launcher("--max-running-requests", "1")
    body = {"messages": [{"role": "user", "content": QUESTION}], "ignore_eos": True, "temperature": 0}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        pool.submit(server.post, "/v1/chat/completions", {**body, "rid": "first"})
        open_operations(page, server.url)
        page.until(lambda: "first" in page.id("requests").text, "the running request")
        pool.submit(server.post, "/v1/chat/completions", {**body, "rid": "second"})
        waiting = "#requests [aria-label='Waiting, in the order of arrival'] tbody tr"
        page.until(lambda: [row.text for row in page.all(waiting) if row.text.startswith("second")], "the queue")
        assert "1 running, 1 waiting" in page.id("requests").text
        for name in ("second", "first"):
            server.post("/abort_request", {"rid": name})
    page.until(lambda: not page.all(waiting), "the empty queue")


def test_plugins_are_listed_and_filtered(page: Page, server: Any) -> None:
    open_operations(page, server.url)
    page.until(lambda: len(page.all("#plugins tbody tr")) > 20, "the plugins")
    page.write("plugin-filter", "eviction:lru")
    (row,) = page.all("#plugins tbody tr")
    assert "sglang-plug" in row.text and "loaded" in row.text


def test_batches_show_their_progress(page: Page, server: Any) -> None:
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions"}
    line["body"] = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 2}  # type: ignore[assignment]
    files = {"file": ("input.jsonl", json.dumps(line).encode())}
    file = server.post("/v1/files", None, files=files, data={"purpose": "batch"}).json()
    body = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = server.post("/v1/batches", body).json()
    while server.get(f"/v1/batches/{batch['id']}").json()["status"] != "completed":
        time.sleep(0.05)
    open_operations(page, server.url)
    page.until(lambda: "1 of 1" in page.id("batches").text, "the progress")
    assert batch["id"] in page.id("batches").text and "completed" in page.id("batches").text


def test_a_pause_stops_the_calls(page: Page, server: Any) -> None:
    open_operations(page, server.url)
    page.press("pause")
    assert page.id("pause").text == "Continue" and page.id("pause").get_attribute("aria-pressed") == "true"
    page.press("pause")
    assert page.id("pause").text == "Pause"


def test_a_wrong_key_is_asked_for_again(page: Page, keyed: Any) -> None:
    page.expected_errors = ("status of 401",)
    page.open(keyed.url, "/playground/operations")
    page.until(lambda: page.id("key-dialog").is_displayed(), "the dialog")
    page.id("key-input").send_keys("wrong\n")
    page.until(lambda: page.id("key-message").text == "The server refused this key.", "the refusal")
    page.id("key-input").send_keys(f"{KEY}\n")
    page.until(lambda: page.all("#slots li"), "the KV slots")


def test_a_server_without_metrics_shows_the_rest(page: Page, shared_launcher: Any, tmp_path: Path) -> None:
    plugin = tmp_path / "faulty.py"
    plugin.write_text("from __future__ import annotations\nraise RuntimeError('<b>faulty</b>')\n")
    blocked = ("--block-plugin", "route:metrics", "--block-plugin", "route:batches", "--block-plugin", "outlines")
    server = shared_launcher("--plugin", str(plugin), *blocked)
    page.expected_errors = ("status of 404",)
    open_operations(page, server.url)
    page.until(lambda: page.id("metrics-note").is_displayed(), "the note")
    page.until(lambda: not page.id("batches").is_displayed(), "no batches")
    rows = {row.text.split()[0]: row.text for row in page.all("#plugins tbody tr")}
    assert "failed" in rows["faulty"] and "<b>faulty</b>" in rows["faulty"] and "blocked" in rows["outlines"]
