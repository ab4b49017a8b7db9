"""Tests of the page of the routes: reading, filtering, and calling the server."""

from __future__ import annotations

from typing import Any

from .conftest import KEY
from .page import By, Page


def open_route(page: Page, url: str, method: str, path: str) -> Any:
    """Open the page and a route on it, and return the element of the route."""
    page.open(url, "/docs")
    page.until(lambda: len(page.all(".route")) > 30, "the routes")
    page.write("filter", f"{method} {path}".lower())
    (route,) = [element for element in page.all(".route") if element.is_displayed() and path_of(element) == path]
    route.find_element(By.TAG_NAME, "summary").click()
    return page.until(lambda: route.find_elements(By.TAG_NAME, "section"), "the form")[0]


def path_of(route: Any) -> str:
    return str(route.find_element(By.CLASS_NAME, "path").text)


def send(page: Page, form: Any) -> tuple[str, str]:
    """Click Send, and return the status line and the answer."""
    form.find_element(By.CSS_SELECTOR, "button.primary").click()
    state = form.find_element(By.CLASS_NAME, "state")
    page.until(lambda: state.text not in ("", "…"), "the answer")
    return state.text, form.find_element(By.CLASS_NAME, "answer").text


def test_a_chat_is_sent_with_the_example(page: Page, server: Any) -> None:
    form = open_route(page, server.url, "post", "/v1/chat/completions")
    status, answer = send(page, form)
    assert status.startswith("200") and "Lima" in answer
    assert "Fields of the body" in form.find_element(By.XPATH, "..").text


def test_a_wrong_body_shows_the_server_s_error(page: Page, server: Any) -> None:
    page.expected_errors = ("status of 400",)
    form = open_route(page, server.url, "post", "/v1/completions")
    body = form.find_element(By.TAG_NAME, "textarea")
    body.clear()
    body.send_keys('{"prompt": 5}')
    status, answer = send(page, form)
    assert status.startswith("400") and "prompt" in answer


def test_a_path_has_a_parameter(page: Page, server: Any) -> None:
    page.expected_errors = ("status of 404",)
    form = open_route(page, server.url, "get", "/v1/models/{model}")
    form.find_element(By.TAG_NAME, "input").send_keys("a model/of nobody")
    status, answer = send(page, form)
    assert status.startswith("404") and "a model/of nobody" in answer


def test_the_key_is_asked_for_and_sent(page: Page, keyed: Any) -> None:
    page.expected_errors = ("status of 401",)
    page.open(keyed.url, "/docs")
    page.until(lambda: page.id("key-dialog").is_displayed(), "the dialog")
    page.id("key-input").send_keys(f"{KEY}\n")
    page.until(lambda: page.all(".route"), "the routes")
    form = open_route_again(page, "/v1/models")
    status, answer = send(page, form)
    assert status.startswith("200") and '"object": "list"' in answer


def open_route_again(page: Page, path: str) -> Any:
    (route,) = [element for element in page.all(".route") if path_of(element) == path]
    route.find_element(By.TAG_NAME, "summary").click()
    return page.until(lambda: route.find_elements(By.TAG_NAME, "section"), "the form")[0]
