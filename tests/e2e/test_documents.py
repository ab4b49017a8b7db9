"""SGLang's published documents run unchanged apart from the names of modules and models."""

from __future__ import annotations

import contextlib
import functools
import io
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from sglang_plug_lang import set_default_backend, terminate_process, wait_for_server
from sglang_plug_lang.server_process import free_port

from .document_checks import CHECKS, Notebook, check
from .document_models import make_models
from .vision_models import make_vision_model, png

requests = pytest.importorskip("requests", reason="the documents' cells use it; it comes with the 'test' extra")

FOLDER = Path(__file__).with_name("documents")
CELL = re.compile(r"^## ([^\n]+)\n\n```(python|bash)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CELLS = {
    "quick-start": 9,
    "openai-completions": 11,
    "native-api-2025-02": 18,
    "native-api-2025-12": 25,
    "frontend-language": 17,
}
"""The number of cells of each document."""

MODULES = {r"(?<=\bfrom )sglang\b|(?<= -m )sglang\b": "sglang_plug_lang"}
"""Patterns of SGLang's module names, and the replacement: programs need no other translation."""

OTHERS = {
    # The copied document lacks the host.
    r"https://:\{port\}": "http://localhost:{port}",
    # A helper module of SGLang's documentation tests.
    r"\bfrom patch import\b": "from sglang_plug_lang.utils import",
    # The assertion for this route allows no keys besides those of one version of SGLang.
    r'keys\(\) == (\{"model_path", "is_generation", "tokenizer_path"\})': r"keys() >= \1",
    # An image next to the test, instead of one on the internet.
    r"https://github\.com/sgl-project/sglang/\S*example_image\.png\?raw=true": "example_image.png",
    # Waiting times are for large models.
    r"\btime\.sleep\(": "time.sleep(0.1 * ",
}

EXCLUDED = {
    ("quick-start", "Terminal"): "the same command as in the cell after it",
}
"""Cells that do not run, with the reason."""
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "SGLANG_PLUG_DEPLOYMENT": "thread",  # faster, and the documents do not depend on processes
}
STARTS_WITHIN = 300.0
"""Maximum seconds that a cell waits for a server; without a limit it would wait for a dead one for ever."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    vision_model = make_vision_model("qwen2.5-vl", folder / "qwen2.5-vl")
    return {**make_models(folder), "Qwen/Qwen2.5-VL-7B-Instruct": vision_model.path}


@pytest.fixture
def book(models: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    """An empty notebook in a new folder. Servers that its cells leave running are ended."""
    monkeypatch.chdir(tmp_path)
    for name, value in {**ENVIRONMENT, "XDG_STATE_HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "example_image.png").write_bytes(png(64, 48))
    wait_longer = functools.partial(wait_for_server, timeout=STARTS_WITHIN)
    monkeypatch.setattr("sglang_plug_lang.utils.wait_for_server", wait_longer)
    book = Notebook(models)
    yield book
    set_default_backend(None)
    for value in book.names.values():
        if isinstance(value, subprocess.Popen):
            terminate_process(value)


def cells_of(document: str) -> list[tuple[str, str, str]]:
    """Return name, language and text of the cells of a document."""
    cells = CELL.findall((FOLDER / f"{document}.md").read_text(encoding="utf-8"))
    return [(name, language, text) for name, language, text in cells]


def translated(text: str, models: Mapping[str, Path], port: int) -> str:
    """Return a cell with the names of modules and models, and the port, of this test."""
    for pattern, replacement in {**MODULES, **OTHERS, r"\b30000\b": str(port)}.items():
        text = re.sub(pattern, replacement, text)
    names = "|".join(re.escape(name) for name in sorted(models, key=len, reverse=True))
    return re.sub(names, lambda match: str(models[match[0]]), text)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("document", CELLS)
def test_the_cells_of(document: str, book: Notebook) -> None:
    port = free_port("")
    for cell, language, text in cells_of(document):
        if (document, cell) in EXCLUDED:
            continue
        assert language == "python"
        code = compile(translated(text, book.models, port), f"{document} {cell}", "exec")
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(code, book.names)
        book.printed[cell] = output.getvalue()
        check(document, cell, book)


def test_every_cell_is_there_and_every_table_speaks_of_one() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} == CELLS.keys() == CHECKS.keys()
    cells = {document: [name for name, *_ in cells_of(document)] for document in CELLS}
    assert {document: len(names) for document, names in cells.items()} == CELLS
    for names in cells.values():
        numbered = [name for name in names if name.startswith("In ")]
        assert numbered == [f"In [{number}]" for number in range(1, len(numbered) + 1)]
    assert all(cell in cells[document] for document, cell in EXCLUDED)


def test_the_terminal_command_is_the_cell_after_it() -> None:
    (_, _, command), (_, _, cell), *_ = cells_of("quick-start")
    assert command.replace("\\\n", " ").split() == cell.split('"""')[1].replace("\\\n", " ").split()
