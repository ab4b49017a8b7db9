"""Tests of the pages on a phone, at a zoom of 200 %, in dark mode, with screen readers and with a keyboard."""

from __future__ import annotations

from typing import Any

import pytest

from .page import HEIGHT, WIDTH, ActionChains, Keys, Page

SIZES = {"phone": (360, 740, 2.0), "zoomed": (WIDTH // 2, HEIGHT // 2, 2.0), "wide": (1800, 1000, 1.0)}
UNNAMED = """
return [...document.querySelectorAll("input, textarea, select, button, a[href], [tabindex='0']")].filter((one) => {
  const labels = [...(one.labels ?? [])].map((label) => label.textContent).join("");
  return !(labels + one.textContent + (one.getAttribute("aria-label") ?? "")).trim();
}).map((one) => one.outerHTML)
"""
"""Script that returns the controls without a name for screen readers."""
CONTRAST = """
const channels = (text) => {
  const numbers = text.match(/[\\d.]+/g).map(Number);
  return numbers.slice(0, 3).map((one) => (text.startsWith("color") ? one * 255 : one));
};
const light = (color) => channels(color).map((one) => one / 255)
  .map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4))
  .reduce((sum, one, index) => sum + one * [0.2126, 0.7152, 0.0722][index], 0);
const behind = (one) => {
  for (let at = one; at; at = at.parentElement) {
    const color = getComputedStyle(at).backgroundColor;
    if (!/, 0\\)$/.test(color)) return color;
  }
  return "rgb(255, 255, 255)";
};
return [...document.querySelectorAll("p, label, summary, h1, h2, button, a, td, th, li")].filter((one) => {
  if (!one.textContent.trim() || one.disabled || !one.checkVisibility()) return false;
  const [front, back] = [light(getComputedStyle(one).color), light(behind(one))];
  return (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05) < 4.5;
}).map((one) => one.textContent.trim())
"""
"""Script that returns texts with less contrast than WCAG 2 requires, 4.5."""


def open_page(page: Page, url: str, path: str) -> None:
    page.open(url, path)
    page.until(lambda: "…" not in page.id("model").text, "the model")


@pytest.mark.parametrize("path", ["/", "/playground/operations"])
@pytest.mark.parametrize("size", SIZES)
def test_nothing_is_wider_than_the_window(page: Page, server: Any, path: str, size: str) -> None:
    width, height, scale = SIZES[size]
    page.resize(width, height, scale=scale)
    open_page(page, server.url, path)
    for group in page.all("details"):
        page.script("arguments[0].open = true", group)
    assert page.script("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("size", ["phone", "zoomed"])
def test_a_chat_in_a_small_window(page: Page, server: Any, size: str) -> None:
    width, height, scale = SIZES[size]
    page.resize(width, height, scale=scale)
    page.open_chat(server.url)
    page.send("What is the capital of Peru?")
    top, bottom = page.script(
        "const at = document.getElementById('send').getBoundingClientRect(); return [at.top, at.bottom]"
    )
    assert 0 <= top and bottom <= height + 1, "the answer and the button are in view"


@pytest.mark.parametrize("path", ["/", "/playground/operations"])
@pytest.mark.parametrize("dark", [False, True])
def test_texts_have_contrast_and_controls_have_names(page: Page, server: Any, path: str, dark: bool) -> None:
    page.resize(WIDTH, HEIGHT, dark=dark)
    open_page(page, server.url, path)
    for group in page.all("details"):
        page.script("arguments[0].open = true", group)
    assert page.script(CONTRAST) == []
    assert page.script(UNNAMED) == []


def test_the_keyboard_suffices(page: Page, server: Any) -> None:
    page.open_chat(server.url)
    keys = ActionChains(page.browser)
    keys.send_keys(Keys.TAB).perform()
    assert page.script("return document.activeElement.className") == "skip"
    order = []
    for _ in range(7):
        keys.send_keys(Keys.TAB).perform()
        order.append(page.script("return document.activeElement.id || document.activeElement.textContent"))
    assert order == ["API", "Operations", "key-button", "tab-chat", "conversation", "message", "send"]
    page.id("message").send_keys("What is the capital of Peru?", Keys.ENTER)
    page.answer(1)
    assert page.script("return document.activeElement.id") == "message", "the next message can be written at once"
