"""Actions of tests on a page: writing, clicking, reading, and waiting."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest


def _selenium(module: str) -> Any:
    """Import a module of Selenium; without it, the tests that import this module are skipped."""
    return pytest.importorskip(f"selenium.webdriver{module}", reason="selenium comes with the 'browser' extra")


webdriver = _selenium("")
ActionChains = _selenium(".common.action_chains").ActionChains
By = _selenium(".common.by").By
Keys = _selenium(".common.keys").Keys
WebDriverWait = _selenium(".support.ui").WebDriverWait

TIMEOUT = 60
"""Maximum seconds to wait for an expected state."""
WIDTH, HEIGHT = 1280, 900


def start_browser() -> Any:
    """Start headless Chromium with recorded console and requests. Selenium does not download browser or driver."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    arguments = ["--headless=new", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars", "--lang=en"]
    if os.geteuid() == 0:
        arguments.append("--no-sandbox")  # Chromium does not start as root otherwise
    for argument in arguments:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    return webdriver.Chrome(options=options, service=service)


class Page:
    """The only page of the browser.

    Args:
        browser: its logs of earlier pages are dropped.
    """

    def __init__(self, browser: Any) -> None:
        self.browser = browser
        self.expected_errors: tuple[str, ...] = ()
        """Parts of the messages that the console may have."""
        self._hosts: set[str] = set()
        self.resize(WIDTH, HEIGHT)
        browser.get("about:blank")
        for log in ("browser", "performance"):
            browser.get_log(log)

    def open(self, url: str, path: str = "/") -> Page:
        """Load a page of a server."""
        self._hosts.add(urlsplit(url).netloc)
        self.browser.get(url + path)
        return self

    def open_chat(self, url: str) -> Page:
        """Load the playground, and wait until it knows the model."""
        self.open(url)
        self.until(lambda: self.id("message").is_displayed(), "the chat")
        return self

    def resize(self, width: int, height: int, *, scale: float = 1, dark: bool = False) -> None:
        """Show the page in a window of so many CSS pixels; a zoom of 200 % halves these and doubles the scale."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def id(self, name: str) -> Any:
        """Return the element with an id."""
        return self.browser.find_element(By.ID, name)

    def all(self, selector: str) -> list[Any]:
        """Return the elements that match a CSS selector."""
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def script(self, code: str, *arguments: Any) -> Any:
        """Run a script in the page, and return its value."""
        return self.browser.execute_script(code, *arguments)

    def until(self, holds: Callable[[], Any], description: str) -> Any:
        """Poll ``holds`` until it returns a true value, and return that."""
        return WebDriverWait(self.browser, TIMEOUT, poll_frequency=0.05).until(
            lambda _: holds(), f"never came: {description}"
        )

    def press(self, name: str) -> None:
        """Click the element with an id, after opening the groups of settings that contain it."""
        self._reveal(name)
        self.id(name).click()

    def write(self, name: str, text: str) -> None:
        """Replace the text of a field."""
        self._reveal(name)
        self.id(name).clear()
        self.id(name).send_keys(text)

    def choose(self, name: str, value: str) -> None:
        """Choose an option of a list."""
        self._reveal(name)
        self.id(name).find_element(By.CSS_SELECTOR, f"option[value='{value}']").click()

    def send(self, text: str) -> Any:
        """Send a message, and return the complete answer."""
        before = len(self.all(".message.assistant"))
        self.write("message", text)
        self.press("send")
        return self.answer(before + 1)

    def answer(self, number: int) -> Any:
        """Wait until all answers are complete, and return the one with this number."""
        self.until(lambda: len(self.all(".message.assistant")) == number, f"answer {number}")
        self.until(lambda: self.id("send").is_displayed(), "the end of the answer")
        return self.all(".message.assistant")[-1]

    def follow(self, name: str) -> None:
        """Follow a link between the pages."""
        next(link for link in self.all("nav a") if link.text == name).click()

    def console_errors(self) -> list[str]:
        """Return the errors in the console since the last call, without the expected ones."""
        entries = [entry["message"] for entry in self.browser.get_log("browser") if entry["level"] == "SEVERE"]
        return [text for text in entries if not any(part in text for part in self.expected_errors)]

    def requested_hosts(self) -> set[str]:
        """Return the hosts of all requests since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self.browser.get_log("performance")]
        sent = [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]
        return {urlsplit(url).netloc for url in sent if url.startswith(("http", "ws"))}

    def check(self) -> None:
        """Fail if the console has an error, or a request went to another host."""
        assert self.console_errors() == []
        assert self.requested_hosts() <= self._hosts

    def _reveal(self, name: str) -> None:
        opening = "for (let at = arguments[0]; at; at = at.parentElement) if (at.tagName === 'DETAILS') at.open = true"
        self.script(opening, self.id(name))
