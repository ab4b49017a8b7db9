"""Installs the wheel into an empty environment and tries it out, like a new user: ``make newcomer``.

Builds the wheel, installs it and its dependencies into an empty environment, and serves the demo model from an empty
folder. Then it chats in the terminal and, if Chromium is installed, in the browser, measures with ``bench serve``, and
stops the server.
Exit status 75: the package index did not deliver.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
QUESTION, ANSWER = "What is the capital of Peru?", "Lima"
READY = " at http://"
TIMEOUT = 300.0
"""Seconds after which an expected event counts as missing."""
INDEX_FAILED = 75


class Failure(Exception):
    """A step that failed."""


class IndexFailure(Failure):
    """The installation of packages failed."""


def main() -> int:
    """Run all steps, print their durations, and return the exit status."""
    try:
        with tempfile.TemporaryDirectory(prefix="newcomer-") as folder:
            _first_hour(Path(folder))
    except Failure as error:
        print(f"newcomer: {error}", file=sys.stderr)
        return INDEX_FAILED if isinstance(error, IndexFailure) else 1
    return 0


def _first_hour(folder: Path) -> None:
    home = folder / "home"
    home.mkdir()
    with _step("build the wheel"):
        wheel = _build_wheel(folder)
    with _step("install it into an empty environment"):
        program = _install(wheel, folder / "venv")
    environment = _environment(home, program.parent)
    with _step("look at the installation"):
        _expect(_run([str(program), "env"], home, environment), "sglang-plug")
        _expect(_run([str(program), "plugins", "doctor"], home, environment), "")
    with _server(program, home, environment) as url:
        with _step("chat in the terminal"):
            _expect(_run([str(program), "chat", "--url", url, "-q", QUESTION], home, environment), ANSWER)
        if _has_browser():
            with _step("chat in the browser"):
                _expect(_run([sys.executable, "-m", "tests.browser.ask", url, QUESTION], ROOT, os.environ), ANSWER)
        else:
            print("newcomer: not in the browser: Chromium, its driver or Selenium is not installed")
        with _step("measure"):
            _measure(program, url, home, environment)


@contextlib.contextmanager
def _step(name: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    print(f"newcomer: {name}: {time.monotonic() - started:.1f} s", flush=True)


def _build_wheel(folder: Path) -> Path:
    """Build the wheel from a copy of the checkout, without the files of earlier builds."""
    source = folder / "source"
    source.mkdir()
    for name in ("core", "builtin_models", "builtin_backends", "api"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(folder), str(source)]
    _pip(command, folder)
    wheels = list(folder.glob("sglang_plug-*.whl"))
    if len(wheels) != 1:
        raise Failure(f"there should be one wheel, not {wheels}")
    return wheels[0]


def _install(wheel: Path, venv: Path) -> Path:
    """Install the wheel into a new virtual environment, and return the path of the program."""
    _pip([sys.executable, "-m", "venv", str(venv)], venv.parent)
    _pip([str(venv / "bin" / "python"), "-m", "pip", "install", "-q", "--no-compile", str(wheel)], venv.parent)
    return venv / "bin" / "sglang-plug"


def _pip(command: Sequence[str], folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PIP_NO_INDEX")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise IndexFailure(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")


def _environment(home: Path, programs: Path) -> dict[str, str]:
    """Return the environment variables of a new user: an empty home folder, and no path to the checkout."""
    dropped = ("PYTHONPATH", "VIRTUAL_ENV", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "HOME": str(home), "PATH": path, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


def _run(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )
    if done.returncode:
        raise Failure(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def _expect(output: str, part: str) -> None:
    if part not in output:
        raise Failure(f"{part!r} was expected in:\n{output}")


@contextlib.contextmanager
def _server(program: Path, home: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Serve the demo model, yield its address, and stop the server as Ctrl-C does."""
    command = [str(program), "serve", "--port", "0", "--max-total-tokens", "32768"]
    with (home / "server.log").open("w+") as log:
        started = time.monotonic()
        process = subprocess.Popen(
            command, cwd=home, env=dict(environment), stdout=subprocess.PIPE, stderr=log, text=True
        )
        timer = threading.Timer(TIMEOUT, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            line = next((line for line in process.stdout if READY in line), "")
            timer.cancel()
            if not line:
                log.seek(0)
                raise Failure(f"the server did not start:\n{log.read()[-4000:]}")
            print(f"newcomer: serve: {time.monotonic() - started:.1f} s", flush=True)
            yield line.split(" at ")[1].strip()
            with _step("stop"):
                process.send_signal(signal.SIGINT)
                if status := process.wait(TIMEOUT):
                    raise Failure(f"the server ended with status {status}")
        finally:
            timer.cancel()
            process.kill()
            process.wait()


def _has_browser() -> bool:
    programs = all(shutil.which(name) for name in ("chromium", "chromedriver"))
    return programs and importlib.util.find_spec("selenium") is not None


def _measure(program: Path, url: str, home: Path, environment: Mapping[str, str]) -> None:
    figures = home / "figures.json"
    sizes = ["--num-prompts", "8", "--random-input-len", "64", "--random-output-len", "16"]
    command = [str(program), "bench", "serve", "--base-url", url, *sizes, "--output-file", str(figures)]
    _run(command, home, environment)
    completed = json.loads(figures.read_text(encoding="utf-8"))["completed"]
    if completed != 8:
        raise Failure(f"{completed} of 8 requests were completed")


if __name__ == "__main__":
    sys.exit(main())
