"""``sglang-plug plugins search``: finds distributions in an index of known plugins."""

from __future__ import annotations

import argparse
from typing import Any

from sglang_plug import PluginError, Plugins
from sglang_plug.plugins.hookspecs import CONTRACT_VERSION
from sglang_plug.system.hints import did_you_mean
from sglang_plug_api.plugin_index.contract_range import ContractRange
from sglang_plug_api.plugin_index.index import IndexEntry, read_index


def add_search_action(actions: Any) -> None:
    """Add the action ``search`` to the subparsers of ``sglang-plug plugins``."""
    parser = actions.add_parser("search", help="find distributions in an index; status 1 if nothing matches")
    parser.add_argument(
        "words", metavar="WORD", nargs="*", help="words that must all occur in the name, kinds or summary"
    )
    parser.add_argument("--kind", help="only distributions with components of this kind")
    parser.add_argument("--index", metavar="FILE|URL", help="index to search instead of the one in this package")
    parser.set_defaults(act=print_matches)


def print_matches(options: argparse.Namespace, plugins: Plugins) -> int:
    """Print the matching entries; return the exit status. Raises ``PluginError`` for a faulty index or unknown kind."""
    entries = read_index(options.index)
    kinds = sorted({*plugins.kinds(), *(kind for entry in entries for kind in entry.kinds)})
    if options.kind is not None and options.kind not in kinds:
        hint = did_you_mean(options.kind, kinds) or f"; known: {', '.join(kinds)}"
        raise PluginError(f"no kind of components named {options.kind!r}{hint}")
    chosen = [entry for entry in entries if entry.matches(options.words) and options.kind in (None, *entry.kinds)]
    installed = {plugin.distribution for plugin in plugins.imported}
    for entry in chosen:
        _print_entry(entry, is_installed=entry.distribution in installed)
    print(f"{len(chosen)} of {len(entries)} distributions")
    return 0 if chosen else 1


def _print_entry(entry: IndexEntry, *, is_installed: bool) -> None:
    suits = ContractRange.parse(entry.contract).includes(CONTRACT_VERSION)
    notes = ["installed"] if is_installed else []
    notes += [] if suits else [f"not for this contract, {CONTRACT_VERSION}"]
    print(f"{entry.distribution}" + (f" ({', '.join(notes)})" if notes else ""))
    print(f"  {entry.summary}")
    print(f"  {', '.join(entry.kinds)} | {entry.licence} | contract {entry.contract} | {entry.homepage}")
