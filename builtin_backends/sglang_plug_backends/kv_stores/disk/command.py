"""``sglang-plug cache``: inspect, verify and prune a directory of KV blocks, also while servers use it."""

from __future__ import annotations

import argparse
from collections import Counter

from sglang_plug import ConfigError, KVStoreError, Plugins
from sglang_plug_backends.kv_stores.settings import parse_bytes

from .directory import StoreDirectory, remove_until
from .segment import Segment


class CacheCommand:
    """The command with its actions ``stats``, ``verify`` and ``prune``."""

    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        """Add one subparser for each action."""
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        stats = actions.add_parser("stats", help="files, blocks and bytes")
        verify = actions.add_parser("verify", help="read every block; the exit status is 1 if any is damaged")
        prune = actions.add_parser("prune", help="remove files that no server writes to, the oldest first")
        prune.add_argument("--bytes", metavar="SIZE", default="0", help="size to keep, such as 10GB; default: 0")
        for action, act in ((stats, _stats), (verify, _verify), (prune, _prune)):
            action.add_argument("directory", metavar="DIR", help="the value of disk.path")
            action.set_defaults(act=act)

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        """Run the chosen action; return its exit status."""
        return int(options.act(StoreDirectory.existing(options.directory), options))


def _segments(directory: StoreDirectory) -> list[Segment]:
    segments = []
    for path in directory.segment_paths(directory.generation()):
        try:
            segments.append(Segment(path))
        except FileNotFoundError:
            continue  # removed by a server
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error}") from error
    return segments


def _stats(directory: StoreDirectory, options: argparse.Namespace) -> int:
    counts: Counter[str] = Counter()
    for segment in _segments(directory):
        counts["files"] += 1
        counts["files being written"] += segment.is_locked()
        counts["bytes"] += segment.size
        counts["blocks"] += sum(1 for _ in segment.scan())
    for name in ("files", "files being written", "blocks", "bytes"):
        print(f"{name}: {counts[name]}")
    print(f"generation: {directory.generation()}")
    return 0


def _verify(directory: StoreDirectory, options: argparse.Namespace) -> int:
    intact = damaged = skipped = 0
    for segment in _segments(directory):
        known = 0
        for header, offset in segment.scan():
            skipped += offset - known
            known = segment.scanned
            try:
                segment.read(header.key, offset, header.length)
                intact += 1
            except KVStoreError as error:
                damaged += 1
                print(error)
        if not segment.is_locked():
            skipped += segment.size - known
    print(f"intact blocks: {intact}\ndamaged blocks: {damaged}\nbytes that belong to no block: {skipped}")
    return 1 if damaged else 0


def _prune(directory: StoreDirectory, options: argparse.Namespace) -> int:
    try:
        max_bytes = 0 if options.bytes == "0" else parse_bytes(options.bytes)
    except ValueError as error:
        raise ConfigError(f"--bytes: {error}") from error
    segments = _segments(directory)
    total = sum(segment.size for segment in segments)
    removed = remove_until(segments, max_bytes, total)
    freed = sum(segment.size for segment in removed)
    print(f"removed files: {len(removed)}\nremoved bytes: {freed}\nbytes left: {total - freed}")
    return 0


command = CacheCommand()
