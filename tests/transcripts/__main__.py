"""Record what a tree's server and command answer, and compare two recordings."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from .comparing import differences, nearly_equal, read, without_locations
from .exchanges import Output, Talk
from .placeholders import Placeholders
from .serving import Tree, serving

ROOT = Path(__file__).parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and return the exit code."""
    options = parser().parse_args(arguments)
    code: int = options.run(options)
    return code


def parser() -> argparse.ArgumentParser:
    """Return the parser with the options of both commands."""
    parser = argparse.ArgumentParser(prog="python -m tests.transcripts", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    record = commands.add_parser("record", help="record a tree")
    record.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSON lines to write")
    record.add_argument(
        "--tree", type=Path, default=ROOT, metavar="FOLDER", help="checkout with a .venv; default: this one"
    )
    record.add_argument("--families", action="store_true", help="record the offline engine with every family instead")
    record.add_argument("--only", action="append", metavar="NAME", help="only this server, or 'command'; repeatable")
    record.set_defaults(run=run_record)
    compare = commands.add_parser("compare", help="print what differs; status 1 if anything does")
    compare.add_argument("first", type=Path)
    compare.add_argument("second", type=Path)
    compare.add_argument(
        "--ignore-locations", action="store_true", help="code may have moved to other modules and files"
    )
    compare.add_argument("--strict", action="store_true", help="the same events and the same last digits of numbers")
    compare.add_argument("--names", action="store_true", help="print only the names of the exchanges that differ")
    compare.set_defaults(run=run_compare)
    return parser


def run_record(options: argparse.Namespace) -> int:
    """Record into a file, which is written only if everything succeeds."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    began = time.monotonic()
    out: Path = options.out
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(out.name + ".unfinished")
    with tempfile.TemporaryDirectory(prefix="transcripts-") as scratch, unfinished.open("w", encoding="utf-8") as file:
        tree = Tree(options.tree.resolve(), Path(scratch).resolve())
        output, placeholders = Output(file), Placeholders([(tree.root, "<tree>"), (tree.scratch, "<scratch>")])
        if options.families:
            from .families import record_families

            record_families(tree, output, placeholders)
        else:
            _record(tree, output, placeholders, options.only)
    unfinished.replace(out)
    print(f"{len(output.names)} records in {time.monotonic() - began:.0f} s: {out}")
    return 0


def _record(tree: Tree, output: Output, placeholders: Placeholders, only: Sequence[str] | None) -> None:
    from .command_lines import record_commands
    from .servers import recorded

    if only is None or "command" in only:
        began = time.monotonic()
        record_commands(tree, output, placeholders)
        print(f"command lines: {time.monotonic() - began:.0f} s", file=sys.stderr)
    for server in recorded(tree, tree.folder("models")):
        if only is not None and server.name not in only:
            continue
        began, before = time.monotonic(), len(output.names)
        with serving(tree, server.name, *server.flags) as url:
            server.ask(Talk(server.name, url, output, placeholders))
        count = len(output.names) - before
        print(f"{server.name}: {count} exchanges in {time.monotonic() - began:.0f} s", file=sys.stderr)


def run_compare(options: argparse.Namespace) -> int:
    """Print the differences, and return 1 if there are any."""
    before, after = read(options.first), read(options.second)
    prepare = without_locations if options.ignore_locations else lambda record: record
    count = 0
    for difference in differences(before, after, prepare=prepare, strict=options.strict):
        count += 1
        print(difference.name if options.names else "\n".join([f"== {difference.name}", *difference.lines, ""]))
    if not options.strict:
        for kind, names in nearly_equal(before, after, prepare).items():
            print(f"not counted: {len(names)} exchanges {kind}{', e.g. ' if names else ''}{', '.join(names[:3])}")
    print(f"{len(before)} and {len(after)} exchanges: {count} differ")
    return 1 if count else 0


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
