"""Trial of a tokenizer's regular expressions in a separate process, before any text is split by them.

A checkpoint brings the expressions by which its tokenizer splits text. One that backtracks without end would hold a
thread of the server that nothing can stop, so each is tried on texts on which such expressions are slow.
"""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from sglang_plug import ConfigError, python_command, start_child

CPU_SECONDS = 10
"""CPU limit in seconds for all expressions of a tokenizer."""
MEMORY = 2 << 30
"""Address space limit in bytes."""
WALL_SECONDS = 120
MAX_SECONDS = 0.5
"""Maximum CPU seconds to split one of the texts; expressions of known tokenizers take a hundredth of it."""
LENGTHS = 64, 1024, 4096
"""Lengths of the texts in characters."""
RUN = 24
UNITS = ["a", "A", "0", " ", "\n", "!", "_", "\u00e9", "\u4e2d", "aA", "a ", "a'", "1,", "a\n", "\r\n", "'s", "a1"]
MAX_OWN = 24
"""Maximum characters of an expression that are also used as a text."""


class PatternTrial:
    """One trial, which runs concurrently until ``finish``.

    Args:
        parts: what a tokenizer's parts say of themselves, in which expressions are looked for.
    """

    def __init__(self, *parts: object) -> None:
        self._patterns = list(dict.fromkeys(pattern for part in parts for pattern in regular_expressions(part)))
        self._process: subprocess.Popen[bytes] | None = None
        if self._patterns:
            command = python_command(__name__)
            self._process = start_child(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            with contextlib.suppress(BrokenPipeError), cast(BinaryIO, self._process.stdin) as pipe:
                pipe.write(json.dumps(self._patterns).encode())
            self._process.stdin = None

    def finish(self, folder: Path) -> None:
        """Wait for the result. Raises ``ConfigError``, which names ``folder``, if an expression is too slow."""
        if self._process is None:
            return
        try:
            output, _ = self._process.communicate(timeout=WALL_SECONDS)
        except subprocess.TimeoutExpired:
            output = b""
        for index, pattern in enumerate(self._patterns):
            reports = output.splitlines()
            problem = json.loads(reports[index]) if index < len(reports) else "it takes too much time or memory"
            if problem is not None:
                raise ConfigError(
                    f"the tokenizer in {folder} splits text by an expression that cannot be served: {problem} "
                    f"({pattern[:200]!r})"
                )

    def close(self) -> None:
        """End the process, if it still runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def regular_expressions(part: object) -> Iterator[str]:
    """Yield every expression in a part of a ``tokenizer.json``."""
    waiting = [part]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            if isinstance(pattern := value.get("Regex"), str):
                yield pattern
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def texts(pattern: str) -> Iterator[str]:
    """Generate texts on which backtracking expressions are slow: runs with a different ending, and many such runs."""
    own = [character for character in dict.fromkeys(pattern) if character.isalnum()][:MAX_OWN]
    for unit in dict.fromkeys([*UNITS, *own]):
        for length in LENGTHS:
            yield (unit * length)[:length] + "\0!"
        yield (unit * RUN + "\0") * (LENGTHS[-1] // RUN)


def problem_of(pattern: str) -> str | None:
    """Return the reason why an expression cannot be served; ``None`` if it can."""
    from tokenizers import Regex, pre_tokenizers

    try:
        split: Any = pre_tokenizers.Split(Regex(pattern), "isolated")
        for text in texts(pattern):
            started = time.process_time()
            split.pre_tokenize_str(text)
            if (taken := time.process_time() - started) > MAX_SECONDS:
                return f"it takes {taken:.1f} s for {len(text)} characters"
    except BaseException as error:  # the library's panics are no exceptions
        return f"it fails: {str(error)[:200]}"
    return None


def main() -> None:
    """Read expressions from standard input and write the problem of each."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    patterns = json.load(sys.stdin)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    for pattern in patterns:
        problem = problem_of(pattern)
        print(json.dumps(problem), flush=True)
        if problem is not None:
            return


if __name__ == "__main__":
    main()
