"""Tests of the controls of the playground, which depend on the model and on the server's parsers and keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.vision_models import png

from .conftest import KEY
from .page import Keys, Page


def tabs(page: Page) -> list[str]:
    return [tab.text for tab in page.all("#tabs button") if tab.is_displayed()]


def test_images_are_attached_removed_and_sent(page: Page, vision_server: Any, tmp_path: Path) -> None:
    page.open_chat(vision_server.url)
    for name in ("first.png", "second.png"):
        (tmp_path / name).write_bytes(png(64, 48, 3))
        page.id("image-input").send_keys(str(tmp_path / name))
    page.until(lambda: len(page.all("#attached img")) == 2, "both images")
    page.all("#attached button")[1].click()
    assert len(page.all("#attached img")) == 1
    page.write("sampling-max_tokens", "4")
    answer = page.send("What is in the image?")
    assert len(page.all(".message.user img")) == 1 and page.all("#attached img") == []
    assert "4 generated" in answer.text
    page.script("document.getElementById('code').open = true")
    assert "data:image/png;base64," in page.id("code-text").text


@pytest.mark.parametrize("way", ["button", "key"])
def test_an_answer_is_stopped_in_the_page_and_in_the_engine(page: Page, vision_server: Any, way: str) -> None:
    page.open_chat(vision_server.url)
    page.write("sampling-temperature", "0")  # the likeliest tokens of this model never end an output
    page.write("message", "Tell me everything.")
    page.press("send")
    page.until(lambda: "tokens/s" in page.all(".message.assistant")[0].text, "a few tokens")
    if way == "button":
        page.press("stop")
    else:
        page.id("message").send_keys(Keys.ESCAPE)
    assert "stopped" in page.answer(1).text
    vision_server.wait_whole()


def test_a_model_without_images_takes_none(page: Page, server: Any) -> None:
    page.open_chat(server.url)
    assert not page.id("attach").is_displayed()
    assert tabs(page) == ["Chat", "Completion"]


def test_embeddings(page: Page, encoder: Any) -> None:
    page.open(encoder.url)
    page.until(lambda: tabs(page) == ["Embeddings"], "the tab")
    page.write("embeddings-input", "a small dog\na little dog\nstock markets")
    page.all("#embeddings-form button")[0].click()
    page.until(lambda: len(page.all("#embeddings-output table")) == 2, "the embeddings")
    rows = [
        row.text.split() for row in page.all("#embeddings-output table")[1].find_elements("css selector", "tbody tr")
    ]
    assert float(rows[0][2]) > float(rows[0][3]), "the similar sentences are closer"
    assert rows[0][1] == "1.000"


def test_reranking(page: Page, reranker: Any) -> None:
    page.open(reranker.url)
    page.until(lambda: "Rerank" in tabs(page), "the tab")
    page.press("tab-rerank")
    page.write("rerank-query", "who")
    page.write("rerank-documents", "one\ntwo\nthree")
    page.all("#rerank-form button")[0].click()
    page.until(lambda: len(page.all("#rerank-output tbody tr")) == 3, "the documents")
    scores = [float(cell.text) for cell in page.all("#rerank-output tbody td:first-child")]
    assert scores == sorted(scores, reverse=True)


def test_the_key_is_asked_for_and_reasoning_is_folded(page: Page, keyed: Any) -> None:
    page.expected_errors = ("status of 401",)
    page.open(keyed.url)
    page.until(lambda: page.id("key-dialog").is_displayed(), "the dialog")
    assert page.id("key-message").text == "This server needs an API key."
    page.id("key-input").send_keys("a wrong key\n")
    page.until(lambda: page.id("key-message").text == "The server refused this key.", "the refusal")
    page.id("key-input").send_keys(f"{KEY}\n")
    page.until(lambda: page.id("message").is_displayed(), "the chat")
    page.write("sampling-temperature", "0")
    page.send("What is the capital of Peru?")
    reasoning = page.all("details.reasoning")[0]
    assert "The capital of Peru is Lima." in reasoning.get_attribute("textContent")
    stored = page.script("return JSON.stringify(localStorage) + JSON.stringify(sessionStorage) + document.cookie")
    assert stored == "{}{}", "the key is in memory only"
    page.script("document.getElementById('code').open = true")
    assert KEY not in page.id("code-text").text and "$API_KEY" in page.id("code-text").text


def test_without_a_key_the_page_says_why_it_shows_nothing(page: Page, keyed: Any) -> None:
    page.expected_errors = ("status of 401",)
    page.open(keyed.url)
    page.until(lambda: page.id("key-dialog").is_displayed(), "the dialog")
    page.press("key-cancel")
    page.until(lambda: page.id("notice").is_displayed(), "the notice")
    assert "API key" in page.id("notice").text
