"""The options of an argparse parser, which has no public way to list them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator


def actions_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield every argument of a parser and of its subparsers."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for chosen in action.choices.values():
                yield from actions_of(chosen)


def flags_of(parser: argparse.ArgumentParser) -> set[str]:
    """Return the options, such as ``--port`` and ``-h``, of a parser and of its subparsers."""
    return {flag for action in actions_of(parser) for flag in action.option_strings}
