"""Checks of checkpoint files: regular files only, up to a size limit.

A checkpoint comes from a third party. A pipe instead of a file would block the start forever, and a device would
never end. Links are followed because the hub's cache consists of them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from sglang_plug import ConfigError

MIB = 1 << 20
MAX_CONFIG = 16 * MIB
"""Maximum bytes of ``config.json`` and of any other text file that is neither an index nor a vocabulary."""
MAX_INDEX = 64 * MIB
MAX_VOCABULARY = 512 * MIB
"""Maximum bytes of a file with a vocabulary; the largest of well-known models has 35 million."""
MAX_FILES = 1 << 16
"""Maximum entries of a checkpoint's folder and of each folder in it."""
VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt", "added_tokens.json", "tokenizer_config.json")
TEXTS = (".json", ".jinja", ".txt")
BINARIES = (".safetensors", ".model", ".tiktoken")


def check_folder(folder: Path) -> None:
    """Check the files of a checkpoint's folder and of its subfolders before a library opens one.

    Raises ``ConfigError``, which names the file, for one that is not regular or is larger than any that is served.
    """
    for directory in (folder, *(entry for entry in _entries(folder) if entry.is_dir())):
        for file in _entries(directory):
            if file.suffix in TEXTS + BINARIES:
                check_file(file, _max_bytes(file))


def check_file(file: Path, max_bytes: float) -> None:
    """Raise ``ConfigError`` if ``file`` exists and is not a regular file, or has more than ``max_bytes`` bytes."""
    try:
        status = os.stat(file)
    except (OSError, ValueError):
        return
    _check(file, status, max_bytes)


def read_file(file: Path, max_bytes: int) -> bytes:
    """Return the content of a regular file of at most ``max_bytes`` bytes.

    The file is checked after it is opened, so that nothing can replace it meanwhile. Raises ``ConfigError``,
    and ``OSError`` if there is no such file or it cannot be read.
    """
    descriptor = os.open(
        file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    )  # opening a pipe would block without O_NONBLOCK
    with open(descriptor, "rb") as opened:
        _check(file, os.fstat(descriptor), max_bytes)
        content = opened.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ConfigError(f"{file} has more than {max_bytes} bytes, the maximum")
    return content


def _entries(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            for count, entry in enumerate(entries):
                if count >= MAX_FILES:
                    raise ConfigError(f"{folder} has more than {MAX_FILES} files; is it the checkpoint's folder?")
                yield Path(entry.path)
    except OSError:  # the reader of a missing file reports it
        return


def _max_bytes(file: Path) -> float:
    """Return the byte limit of a file by its name; weights have no limit."""
    if file.suffix in BINARIES:
        return float("inf") if file.suffix == ".safetensors" else MAX_VOCABULARY
    if file.name in VOCABULARIES:
        return MAX_VOCABULARY
    return MAX_INDEX if file.name.endswith(".index.json") else MAX_CONFIG


def _check(file: Path, status: os.stat_result, max_bytes: float) -> None:
    if not stat.S_ISREG(status.st_mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        raise ConfigError(f"{file} is {kinds.get(stat.S_IFMT(status.st_mode), 'a device')}, not a regular file")
    if status.st_size > max_bytes:
        raise ConfigError(f"{file} has {status.st_size} bytes; the maximum is {max_bytes}")
