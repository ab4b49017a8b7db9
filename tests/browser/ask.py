"""Ask a question on the playground of a running server: ``python -m tests.browser.ask URL QUESTION``."""

from __future__ import annotations

import sys

from .page import Page, start_browser


def main() -> None:
    """Print the answer; fail if the page has an error, or requests another host."""
    _, url, question = sys.argv
    browser = start_browser()
    try:
        page = Page(browser)
        page.open_chat(url)
        print(page.send(question).text)
        page.check()
    finally:
        browser.quit()


if __name__ == "__main__":
    main()
