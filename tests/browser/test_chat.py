"""Tests of the chat with the demo model in a browser."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from .page import Keys, Page

QUESTION = "What is the capital of Peru?"


def test_an_answer_is_streamed_counted_and_generated_again(page: Page, server: Any) -> None:
    page.open_chat(server.url)
    page.write("sampling-temperature", "0")
    page.id("message").send_keys(QUESTION, Keys.ENTER)
    answer = page.answer(1)
    assert "The capital of Peru is Lima." in answer.text
    assert "15 prompt tokens" in answer.text and "8 generated" in answer.text
    assert "tokens/s" in answer.text and "complete" in answer.text
    assert page.id("announcement").get_attribute("textContent") == "The answer: The capital of Peru is Lima."
    page.press("regenerate")
    again = page.answer(1)
    assert "Lima" in again.text and "(14 cached)" in again.text, "all but the last token come from the prefix cache"
    page.send("And of France?")
    assert len(page.all(".message")) == 4
    page.press("clear")
    assert page.all(".message") == []


def test_the_settings_are_sent(page: Page, server: Any) -> None:
    page.open_chat(server.url)
    page.write("sampling-max_tokens", "3")
    answer = page.send(QUESTION)
    assert "3 generated" in answer.text and "cut off" in answer.text
    page.write("system", "Answer in one word.")
    page.press("regenerate")
    assert "15 prompt tokens" not in page.answer(1).text, "the system prompt is part of it"
    page.write("sampling-max_tokens", "0")
    page.write("message", QUESTION)
    page.press("send")
    assert "Maximum tokens" in page.id("notice").text and len(page.all(".message.assistant")) == 1
    assert page.script("return document.activeElement.id") == "sampling-max_tokens"


def test_markup_of_a_message_is_text(page: Page, server: Any) -> None:
    page.open_chat(server.url)
    page.send("<img src=x onerror='document.title=1'><b>bold</b>")
    assert page.all(".message img") == [] and page.all(".message b") == []
    assert "<b>bold</b>" in page.all(".message.user")[0].text


def test_tools_are_checked_called_and_answered(page: Page, server: Any) -> None:
    page.open_chat(server.url)
    page.write("tools", '[{"type": "function"}]')
    assert page.id("tools-state").text == 'tool 1: "function" is missing'
    page.write("message", "Hello")
    page.press("send")
    assert "Tools: tool 1" in page.id("notice").text and page.all(".message") == []
    page.press("tools-example")
    assert page.id("tools-state").text == "Tools: get_current_weather."
    page.choose("tool-choice", "required")
    page.write("sampling-temperature", "0")
    page.write("message", "")
    answer = page.send("What's the weather like in Boston today?")
    assert "Calls get_current_weather" in answer.text
    assert set(json.loads(page.all(".call pre")[0].text)) == {"city", "unit"}
    page.choose("tool-choice", "none")
    page.all(".results textarea")[0].send_keys('{"temperature": 21}')
    page.all(".results button")[0].click()
    page.answer(2)
    assert [element.get_attribute("aria-label") for element in page.all(".message")] == [
        "You",
        "Model",
        "Tool result",
        "Model",
    ]
    assert page.all(".results") == []


def test_an_answer_keeps_to_a_schema_that_is_checked_while_it_is_written(page: Page, server: Any) -> None:
    page.open_chat(server.url)
    page.choose("format", "json_schema")
    assert page.id("schema-state").text == "This is a schema."
    page.write("schema", '{"type": "objekt"}')
    assert '"objekt" is no type' in page.id("schema-state").text
    assert page.id("schema").get_attribute("aria-invalid") == "true"
    page.write("schema", '{\n  "type": }')
    assert page.id("schema-state").text == 'line 2, column 11: "}" cannot stand here'
    schema = {"type": "object", "properties": {"color": {"enum": ["red", "green"]}}, "required": ["color"]}
    page.write("schema", json.dumps(schema))
    page.send("Which colour?")
    assert json.loads(page.all(".message.assistant .text")[-1].text)["color"] in ("red", "green")


def test_alternatives_of_a_token_are_shown_by_pointer_and_keyboard(page: Page, server: Any) -> None:
    page.open_chat(server.url)
    page.press("logprobs")
    page.write("sampling-temperature", "0")
    answer = page.send(QUESTION)
    tokens = page.all(".tokens .token")
    assert "".join(token.get_attribute("textContent") for token in tokens).startswith("The capital of Peru")
    assert "level-0" in tokens[0].get_attribute("class")
    tokens[0].click()
    assert len(page.all(".token-details tbody tr")) == 5
    tokens[0].send_keys(Keys.ARROW_RIGHT)
    assert "capital" in page.all(".token-details p")[0].text
    assert "8 generated" in answer.text


def test_a_refused_request_is_shown_and_the_conversation_goes_on(page: Page, server: Any) -> None:
    page.expected_errors = ("status of 400",)
    page.open_chat(server.url)
    page.script("document.getElementById('message').value = arguments[0]", "word " * 6000)
    page.press("send")
    assert "4096" in page.answer(1).text
    page.press("regenerate")
    page.answer(1)
    page.press("clear")
    assert "complete" in page.send(QUESTION).text


def test_a_completion(page: Page, server: Any) -> None:
    page.open_chat(server.url)
    page.id("tab-chat").send_keys(Keys.ARROW_RIGHT)
    assert page.id("panel-completion").is_displayed() and not page.id("panel-chat").is_displayed()
    page.write("sampling-max_tokens", "2")
    page.press("logprobs")
    page.write("completion-prompt", "The capital of Peru")
    page.press("complete")
    page.until(lambda: "2 generated" in page.id("completion-output").text, "the completion")
    assert len(page.all("#completion-output .tokens .token")) == 2


def test_the_code_does_the_same(page: Page, server: Any) -> None:
    page.open_chat(server.url)
    page.write("sampling-temperature", "0")
    page.write("sampling-top_k", "5")
    page.write("message", "What's the capital of Peru?")
    page.script("document.getElementById('code').open = true")
    codes = {}
    for language in ("curl", "python", "javascript"):
        page.choose("code-language", language)
        codes[language] = page.id("code-text").text
    done = subprocess.run(["bash", "-c", codes["curl"]], capture_output=True, text=True, timeout=120, check=True)
    assert '"Lima"' in done.stdout or " Lima" in done.stdout
    ran = subprocess.run(
        [sys.executable, "-c", codes["python"]], capture_output=True, text=True, timeout=120, check=True
    )
    assert "Lima" in ran.stdout
    page.press("send")
    page.answer(1)
    page.choose("code-language", "curl")
    assert page.id("code-text").text == codes["curl"], "after the answer it is still the request that was sent"
    assert "extra_body" in codes["python"] and f"{server.url}/v1" in codes["javascript"]
