"""A report in one HTML file, which needs no script and no other host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from sglang_plug import ConfigError, __version__

from .plots import Plot

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 82rem; margin: 2rem auto; padding: 0 1rem; }
pre { overflow-x: auto; font-size: 0.85rem; line-height: 1.35; }
table { border-collapse: collapse; font-size: 0.85rem; }
th, td { text-align: left; padding: 0.1rem 1rem 0.1rem 0; overflow-wrap: anywhere; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1rem; }
figure { margin: 0; }
figcaption { font-weight: 600; }
svg { width: 100%; height: auto; }
"""


def write_report(file: Path, title: str, settings: Mapping[str, Any], figures: str, plots: Sequence[Plot]) -> None:
    """Write a report. Raises ``ConfigError``.

    Args:
        file: the HTML file.
        title: its heading.
        settings: what was measured.
        figures: the figures as the terminal shows them.
        plots: the plots, in order.
    """
    rows = "\n".join(
        f"<tr><th scope='row'>{escape(name)}</th><td>{escape(_text(value))}</td></tr>"
        for name, value in settings.items()
        if value not in (None, {}, ())
    )
    plots_html = "\n".join(
        f"<figure><figcaption>{escape(plot.title)}</figcaption>{plot.svg}</figure>" for plot in plots
    )
    page = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p>Written by sglang-plug {escape(__version__)}.</p>
<h2>Figures</h2>
<pre>{escape(figures)}</pre>
<h2>Plots</h2>
<div class="plots">
{plots_html}
</div>
<h2>Settings</h2>
<table>
{rows}
</table>
</body>
</html>
"""
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error}") from error


def _text(value: Any) -> str:
    return ", ".join(f"{name}: {part}" for name, part in value.items()) if isinstance(value, Mapping) else str(value)
