"""The modules of ``sglang`` are those of sglang-plug, which refuse to be imported if SGLang is installed."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sglang_compat.names import missing_names
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sglang_plug.testing import check_command

PROJECT = Path(__file__).parents[1]
MODULES = PROJECT / "modules"
FILES = sorted((MODULES / "sglang").rglob("*.py"))


def python(code: str, *paths: Path, arguments: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a program with the modules first on the import path."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*paths, MODULES)))}
    command = [sys.executable, *arguments, *([] if arguments else ["-c", code])]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def installed_sglang(folder: Path) -> Path:
    """Make a folder in which the distribution ``sglang`` seems to be installed."""
    (folder / "sglang-0.5.5.dist-info").mkdir(exist_ok=True)
    (folder / "sglang-0.5.5.dist-info" / "METADATA").write_text("Name: sglang\nVersion: 0.5.5\n")
    return folder


IMPORTS = """
import importlib, json, os, sys, traceback
import sglang_plug_api, sglang_plug_lang  # the packages behind the modules, imported once for all children

for module in sys.argv[1:]:
    reading, writing = os.pipe()
    if not os.fork():
        try:
            importlib.import_module(module)
        except BaseException:
            os.write(writing, traceback.format_exc().encode()[-4000:])
        os._exit(0)
    os.close(writing)
    with open(reading) as problem:
        print(json.dumps([module, problem.read()]), flush=True)
    os.wait()
"""
"""A program that imports each of the named modules in a process of its own, as the first module of ``sglang``."""


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(MODULES).with_suffix("").parts).removesuffix(".__init__")


@pytest.fixture(scope="module")
def problems() -> dict[str, str]:
    """Return the errors of importing each of the modules."""
    done = python("", arguments=("-c", IMPORTS, *map(module_of, FILES)))
    assert done.returncode == 0, done.stderr
    return dict(map(json.loads, done.stdout.splitlines()))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(MODULES).as_posix())
def test_every_module_can_be_imported(file: Path, problems: dict[str, str]) -> None:
    assert problems[module_of(file)] == ""


def test_names_are_those_of_sglang_plug() -> None:
    done = python(
        "import sglang as sgl, sglang_plug_lang, sglang_plug_api\n"
        "assert all(getattr(sgl, name) is getattr(sglang_plug_lang, name) for name in sglang_plug_lang.__all__)\n"
        "assert sgl.Engine is sglang_plug_api.Engine\n"
        "from sglang import *\n"
        "from sglang.lang.ir import REGEX_INT, SglGen\n"
        "from sglang.lang.api import Engine\n"
        "import sglang.api\n"
        "assert Engine is sglang.api.Engine is sglang_plug_api.Engine and not hasattr(sglang.api, 'Engines')\n"
        "from sglang.lang.tracer import trace_program\n"
        "from sglang.test.doc_patch import launch_server_cmd\n"
        "from sglang.utils import wait_for_server, print_highlight\n"
        "assert isinstance(gen('x'), SglGen) and 'gen' in dir(sgl)\n"
        "assert not hasattr(sgl, 'video')\n"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["sglang.srt.utils.hf_transformers_utils", "sglang.srt.hf_transformers_utils"])
def test_the_tokenizer_of_a_folder(module: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"Paris": 0, "is": 1, "?": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path)
    done = python(f"from {module} import get_tokenizer; print(get_tokenizer({str(tmp_path)!r}).encode('is Paris'))")
    assert (done.stdout, done.returncode) == ("[1, 0]\n", 0), done.stderr
    assert not missing_names(f"from {module} import get_tokenizer")


def test_importing_imports_nothing_else() -> None:
    done = python("import sys; before = set(sys.modules); import sglang; print(*(set(sys.modules) - before))")
    assert done.stdout.split() == ["sglang"]


def test_the_server_command() -> None:
    done = python("", arguments=("-m", "sglang.launch_server", "--no-such-option"))
    assert done.returncode == 2 and "--no-such-option" in done.stderr


def test_importing_next_to_sglang_is_refused(tmp_path: Path) -> None:
    done = python("import sglang", installed_sglang(tmp_path))
    assert done.returncode == 1
    assert "ImportError: the module 'sglang' is that of sglang-compat, but SGLang itself is installed" in done.stderr


def test_building_next_to_sglang_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PROJECT / "build_backend")
    backend = importlib.import_module("refusing_backend")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(installed_sglang(tmp_path)) if name == "purelib" else "")
    for build in (backend.build_wheel, backend.build_editable):
        with pytest.raises(RuntimeError, match="pip uninstall sglang"):
            build(str(tmp_path))


@pytest.mark.parametrize(
    ("program", "missing"),
    [
        ("import sglang as sgl\nsgl.gen('x'); sgl.Engine(); sgl.global_config.default_backend", []),
        ("from sglang import function, gen\nfrom sglang.lang.ir import REGEX_INT", []),
        ("from sglang.utils import *\nimport sglang.utils\nsglang.utils.wait_for_server", []),
        ("from sglang.api import gen\nfrom sglang.lang.global_config import global_config", []),
        ("import sglang as sgl\n\nsgl.video('a', 3)", [(3, "sglang.video")]),
        ("from sglang.srt.server_args import ServerArgs", [(1, "sglang.srt.server_args.ServerArgs")]),
        ("import sglang.bench_serving", [(1, "sglang.bench_serving")]),
        ("from sglang_router import x\nfrom . import sglang\nsgl.video", []),
    ],
)
def test_missing_names_of_a_program(program: str, missing: list[tuple[int, str]]) -> None:
    assert missing_names(program) == missing


def test_the_command(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text("import sglang as sgl\nsgl.gen('x')\n")
    bad.write_text("from sglang import video\n")
    options = ("--plugins-dir", str(PROJECT.parent))
    check_command("check-sglang-program", [[str(good)]], options=options)
    command = [sys.executable, "-m", "sglang_plug", *options, "check-sglang-program", str(good), str(bad)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, f"{bad}:1 sglang.video\n")
