"""``sglang-plug experts``: plots of recorded expert choices."""

from __future__ import annotations

import argparse
import csv
import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sglang_plug import ConfigError, Plugins

from .columns import COLUMNS

Counts = dict[tuple[int, int], int]
"""Maps (layer, expert) to the number of tokens that chose it."""


class ExpertsCommand:
    """The command with its action ``plot``."""

    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        """Add one subparser for each action."""
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        plot = actions.add_parser("plot", help="a heat map of layers and experts")
        plot.add_argument(
            "file", metavar="FILE", type=Path, help="a .csv or .pt file of /dump_expert_distribution_record"
        )
        plot.add_argument("--out", metavar="PNG", type=Path, help="image file to write; default: next to FILE")
        plot.set_defaults(act=_plot)

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        """Run the chosen action; return its exit status."""
        return int(options.act(options))


def _plot(options: argparse.Namespace) -> int:
    counts = read_counts(options.file)
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("plotting needs matplotlib, which is not installed: pip install 'sglang-plug[plot]'")
    name = options.file.name.removesuffix(".csv").removesuffix(".pt")
    out: Path = options.out or options.file.with_name(f"{name}.png")
    try:
        draw(counts, out)
    except (OSError, ValueError) as error:  # ValueError: the extension names no image format
        raise ConfigError(f"cannot write {out}: {error}") from error
    print(out)
    return 0


def read_counts(path: Path) -> Counts:
    """Return the counts in a dumped ``.csv`` or ``.pt``. Raises ``ConfigError``, naming the line, if it is neither."""
    rows: Sequence[Sequence[str | int]] = _tensor_rows(path) if path.suffix == ".pt" else _table_rows(path)
    counts: Counts = {}
    for number, row in enumerate(rows, 2):
        try:
            layer, expert, count = map(int, row)
        except ValueError:
            text = ",".join(map(str, row))
            raise ConfigError(f"{path}, line {number}: three whole numbers expected, found {text!r}") from None
        if min(layer, expert, count) < 0:
            raise ConfigError(f"{path}, line {number}: a negative number")
        counts[layer, expert] = count
    if not counts:
        raise ConfigError(f"{path} has no data after its first line")
    return counts


def _tensor_rows(path: Path) -> list[tuple[int, int, int]]:
    from .tensor_files import read_columns  # imports torch, which CSV files do not need

    return read_columns(path)


def _table_rows(path: Path) -> list[list[str]]:
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"cannot read {path} as CSV: {error}") from error
    if not rows or tuple(rows[0]) != COLUMNS:
        raise ConfigError(f"{path} is not a record of experts: its first line is not {','.join(COLUMNS)}")
    return rows[1:]


def table(counts: Counts) -> tuple[list[int], list[list[float]]]:
    """Return the layers that have experts, and a row of shares for each: 1 is a layer's most chosen expert."""
    layers = sorted({layer for layer, _ in counts})
    width = max(expert for _, expert in counts) + 1
    rows = [[counts.get((layer, expert), 0) for expert in range(width)] for layer in layers]
    return layers, [[count / (max(row) or 1) for count in row] for row in rows]


def draw(counts: Counts, out: Path) -> None:
    """Write a heat map to ``out``: a row for each layer, a column for each expert."""
    figures: Any = importlib.import_module("matplotlib.figure")
    layers, rows = table(counts)
    size = (max(4.0, 0.12 * len(rows[0]) + 2), max(3.0, 0.2 * len(layers) + 1.5))
    figure = figures.Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(rows, aspect="auto", vmin=0, vmax=1, cmap="viridis", interpolation="nearest")
    axes.set(xlabel="expert", ylabel="layer", title="tokens per expert, relative to each layer's busiest")
    axes.set_yticks(range(len(layers)), [str(layer) for layer in layers])
    figure.colorbar(image)
    figure.savefig(out)


command = ExpertsCommand()
