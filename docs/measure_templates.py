"""Measure for the template of each kind the seconds from ``plugins new`` to a conformance test that passes.

A distribution of each kind is created, installed into an empty virtual environment that sees the packages of this one,
and tested with ``sglang-plug plugins test --strict``: these are the commands that ``plugins new`` prints. The times are
written to ``docs/template_times.toml``, from which ``generate_plugin_authors.py`` takes them. If kinds are named, only
these are measured, and nothing is written.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from sglang_plug_api.scaffold.rendering import template_kinds

TIMES = Path(__file__).with_name("template_times.toml")


def run(*command: str | Path) -> str:
    """Run a command without access to a package index; return its output. Raises ``RuntimeError`` if it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def empty_environment(folder: Path) -> Path:
    """Return the Python of a new virtual environment that sees the packages of this one."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(packages, "parent.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return python


def seconds_to_pass(kind: str, folder: Path) -> float:
    """Create, install and test a distribution of ``kind`` in an empty folder; return the seconds.

    Raises ``RuntimeError`` if its conformance test does not pass.
    """
    python = empty_environment(folder / "venv")
    name = f"new-{kind}"
    project = folder / f"sglang-plug-{name}"
    began = time.monotonic()
    run(python, "-m", "sglang_plug", "plugins", "new", kind, name, "--into", folder)
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--editable", project)
    test(python, project.name)
    return time.monotonic() - began


def test(python: Path, distribution: str) -> None:
    """Run the conformance test of a distribution. Raises ``RuntimeError`` if it does not pass."""
    tested = run(python, "-m", "sglang_plug", "plugins", "test", "--strict", distribution)
    if "1 passed" not in tested:
        raise RuntimeError(f"nothing of {distribution} was tested:\n{tested}")


def written(times: dict[str, float]) -> str:
    """Return the text of ``template_times.toml``."""
    lines = [
        "# Written by docs/measure_templates.py (make template-times).",
        f"measured = {datetime.datetime.now(datetime.UTC).date().isoformat()}",
        f"processors = {os.cpu_count()}",
        "",
        "[seconds]",
        *(f"{kind} = {times[kind]:.1f}" for kind in sorted(times)),
    ]
    return "\n".join(lines) + "\n"


def main(kinds: Sequence[str]) -> None:
    """Measure ``kinds``; if there are none, measure all and write the times."""
    times: dict[str, float] = {}
    for kind in kinds or template_kinds():
        with tempfile.TemporaryDirectory() as folder:
            times[kind] = seconds_to_pass(kind, Path(folder))
        print(f"{kind}: {times[kind]:.1f} s", flush=True)
    if not kinds:
        TIMES.write_text(written(times), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="kinds to measure; default: all")
    main(parser.parse_args().kinds)
