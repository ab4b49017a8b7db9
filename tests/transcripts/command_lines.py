"""Recordings of command lines: help texts, plugins, and the messages and exit codes of wrong command lines."""

from __future__ import annotations

import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor

from .exchanges import Output
from .placeholders import Placeholders
from .serving import Tree

TIMEOUT = 40.0
GOOD = [
    "--help",
    "serve --help",
    "plugins --help",
    "plugins list --help",
    "plugins show --help",
    "experts --help",
    "experts plot --help",
    "version",
    "--version",
    "plugins list",
    "plugins show xgrammar",
    "plugins show routes",
    "plugins show LlamaForCausalLM",
    "plugins show route:chat",
    "plugins show sglang-plug",
    "plugins check llama",
]
WRONG = [
    "",
    "nonsense",
    "serve --nonsense",
    "serve --port x",
    "serve --port 70000",
    "serve --model-path /nowhere/at/all",
    "serve --dtype nonsense",
    "serve --device nonsense",
    "serve --attention-backend nonsense",
    "serve --grammar-backend xgramar",
    "serve --eviction-policy x",
    "serve --max-total-tokens 0",
    "serve --context-length -1",
    "serve --page-size 0",
    "serve --tp-size 0",
    "serve --set ngram.min_match=x",
    "serve --set nonsense.x=1",
    "serve --plugin /nowhere.py",
    "serve --config /nowhere.yaml",
    "serve --prefer x",
    "serve stray",
    "serve --lora-paths a=/nowhere",
    "serve --json-model-override-args {",
    "serve --preferred-sampling-params []",
    "serve --tool-call-parser x",
    "serve --reasoning-parser x",
    "serve --chunked-prefill-size -5",
    "serve --host 999.1.1.1",
    "serve --speculative-algorithm x",
    "serve --task nonsense",
    "serve --quantization x",
    "serve --load-format x",
    "serve --served-model-name",
    "serve --chat-template {{%",
    "serve --max-running-requests 0",
    "serve --mem-fraction-static 2",
    "plugins",
    "plugins nonsense",
    "plugins show",
    "plugins show nonsense",
    "plugins list --nonsense",
    "experts plot /nowhere",
]


def record_commands(tree: Tree, output: Output, placeholders: Placeholders) -> None:
    """Run every command line, two at a time, and record what it writes and its exit code."""
    lines = [*GOOD, *WRONG]
    with ThreadPoolExecutor(2) as pool:
        for line, done in zip(lines, pool.map(lambda line: _run(tree, line), lines), strict=True):
            command, written, errors = placeholders.exchange("", line, done.stdout, done.stderr)
            record = {"command": command, "exit code": done.returncode}
            output.write(f"command/{line}", {**record, "stdout": written.split("\n"), "stderr": errors.split("\n")})


def _run(tree: Tree, line: str) -> subprocess.CompletedProcess[str]:
    """Run a command line to its end; one that serves instead is ended after ``TIMEOUT`` seconds, with status 124."""
    command = [tree.program, *line.split()]
    if line.startswith("serve "):
        command += ["--max-total-tokens", "4096"] if "--max-total-tokens" not in line else []
        command += ["--port", "0"] if "--port" not in line else []
    process = subprocess.Popen(
        command,
        cwd=tree.folder("commands"),
        env=tree.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        written, errors = process.communicate(timeout=TIMEOUT)
        return subprocess.CompletedProcess(command, process.returncode, written, errors)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return subprocess.CompletedProcess(command, 124, "", f"did not end in {TIMEOUT:.0f} s")
