"""Take the screenshots of the documentation: ``python -m tests.browser.screenshots [FOLDER]``."""

from __future__ import annotations

import io
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

from tests.e2e.servers import Launcher

from .page import Page, start_browser

FOLDER = Path(__file__).parents[2] / "docs" / "playground"
COLORS = 96
CITIES = ("Peru", "France", "Kenya", "Japan", "Norway", "Chile", "Italy")
LOAD_SECONDS = 45.0


def main() -> None:
    """Serve the demo model, use the pages, and write the pictures."""
    folder = Path(sys.argv[1]) if sys.argv[1:] else FOLDER
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as logs:
        launcher = Launcher(Path(logs))
        browser = start_browser()
        try:
            limits = ("--max-total-tokens", "12000", "--max-running-requests", "6")
            url = launcher(*limits).url
            page = Page(browser)
            save(chat(page, url), folder / "chat.png")
            save(operations(page, url), folder / "operations.png")
        finally:
            browser.quit()
            launcher.close()


def save(picture: bytes, path: Path) -> None:
    """Write a picture with few colours."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.quantize(COLORS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size // 1024} KB")


def chat(page: Page, url: str) -> bytes:
    """Take the screenshot of a chat with coloured tokens."""
    page.resize(1200, 900)
    page.open_chat(url)
    page.press("logprobs")
    page.send("What is the capital of Peru?")
    page.write("sampling-temperature", "0.7")
    page.write("sampling-seed", "3")
    page.send("Tell me a story.")
    tokens = page.all(".message:last-child .tokens .token")
    uncertain = [token for token in tokens if "level-4" in token.get_attribute("class")]
    (uncertain or tokens)[0].click()
    page.script("const log = document.getElementById('conversation'); log.scrollTop = log.scrollHeight")
    page.script("document.getElementById('settings').scrollTop = 0")
    return page.browser.get_screenshot_as_png()


def operations(page: Page, url: str) -> bytes:
    """Take the screenshot of the operations page under load."""
    ends = time.monotonic() + LOAD_SECONDS
    users = [threading.Thread(target=talk, args=(url, number, ends)) for number in range(9)]
    for user in users:
        user.start()
    page.resize(1200, 1040)
    page.open(url, "/playground/operations")
    time.sleep(LOAD_SECONDS - 8)
    picture = page.browser.get_screenshot_as_png()
    for user in users:
        user.join()
    return picture


def talk(url: str, number: int, ends: float) -> None:
    """Send conversations with a common prefix until the time is over."""
    system = f"You are assistant number {number % 3}. " * 12
    messages: list[Any] = [{"role": "system", "content": system}]
    turn = 0
    while time.monotonic() < ends:
        city = CITIES[(turn * 3 + number) % len(CITIES)]
        messages.append({"role": "user", "content": f"What is the capital of {city}?"})
        body = {"messages": messages, "max_tokens": 60 + 20 * (number % 3), "ignore_eos": True}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120).json()
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        turn += 1
        if turn % 4 == 0:
            del messages[1:]
        time.sleep(0.2 * (number % 4))


if __name__ == "__main__":
    main()
