"""Small line plots as SVG, without a plotting library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 70, 90, 15, 45
COLORS = ("#c0392b", "#1f77b4", "#4d4d4f", "#2ca02c")
TICKS = 5


@dataclass(frozen=True, slots=True)
class Line:
    """A named line."""

    name: str
    points: Sequence[tuple[float, float]]


class Axis:
    """Maps values to pixels.

    Args:
        values: all values of the axis.
        start: pixel of the lowest value.
        end: pixel of the highest value.
        log: use a logarithmic scale, for positive values.
    """

    def __init__(self, values: Sequence[float], start: float, end: float, log: bool) -> None:
        self._log = log
        self._start = start
        self._end = end
        low, high = min(values), max(values)
        self._low: float
        self._high: float
        if log:
            self._low, self._high = math.floor(math.log10(low)), math.ceil(math.log10(high))
        else:
            self._low, self._high = min(0.0, low), high
        if self._high <= self._low:
            self._high = self._low + 1

    def pixel(self, value: float) -> float:
        """Return where a value is drawn."""
        fraction = ((math.log10(value) if self._log else value) - self._low) / (self._high - self._low)
        return self._start + fraction * (self._end - self._start)

    def ticks(self) -> list[float]:
        """Return the values that are marked."""
        if self._log:
            every = max(1, math.ceil((self._high - self._low) / TICKS))
            return [10.0**power for power in range(int(self._low), int(self._high) + 1, every)]
        span = self._high - self._low
        step = 10 ** math.floor(math.log10(span / TICKS))
        step = next(step * factor for factor in (1, 2, 3, 5, 10) if span / (step * factor) <= TICKS + 1)
        return [self._low + number * step for number in range(int(span / step + 1e-9) + 1)]


def plot(
    lines: Sequence[Line],
    x_label: str,
    y_label: str,
    *,
    log_x: bool = False,
    log_y: bool = False,
    markers: bool = False,
) -> str:
    """Return a plot of ``lines``, which have points, with axes and names; ``markers`` draws the points as well."""
    points = [point for line in lines for point in line.points]
    x = Axis([point[0] for point in points], LEFT, WIDTH - RIGHT, log_x)
    y = Axis([point[1] for point in points], HEIGHT - BOTTOM, TOP, log_y)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for value in x.ticks():
        at = x.pixel(value)
        parts.append(f'<path d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#dddddd"/>')
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">{value:g}</text>')
    for value in y.ticks():
        at = y.pixel(value)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{at + 4:.1f}" text-anchor="end">{value:g}</text>')
    for number, line in enumerate(lines):
        color = COLORS[number % len(COLORS)]
        path = "L".join(f"{x.pixel(a):.1f} {y.pixel(b):.1f}" for a, b in line.points)
        parts.append(f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        if markers:
            parts += [
                f'<circle cx="{x.pixel(a):.1f}" cy="{y.pixel(b):.1f}" r="3" fill="{color}"/>' for a, b in line.points
            ]
        top = TOP + 15 + 15 * number
        parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{top}" fill="{color}">{escape(line.name)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">{escape(x_label)}</text>')
    side = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text x="14" y="{side}" text-anchor="middle" transform="rotate(-90 14 {side})">{escape(y_label)}</text>'
    )
    return "\n".join([*parts, "</svg>\n"])
