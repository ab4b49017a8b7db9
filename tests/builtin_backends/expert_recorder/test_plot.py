"""The command ``sglang-plug experts plot``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from sglang_plug.__main__ import main
from sglang_plug_backends.expert_recorder.plot import read_counts, table

COUNTS = "layer_id,expert_id,count\n1,0,4\n1,1,0\n1,2,2\n3,0,0\n3,1,0\n3,2,0\n"


@pytest.fixture
def record(tmp_path: Path) -> Path:
    path = tmp_path / "expert_distribution_1700000000.125000.csv"
    path.write_text(COUNTS)
    return path


def test_counts_become_shares_of_each_layer(record: Path) -> None:
    assert table(read_counts(record)) == ([1, 3], [[1.0, 0.0, 0.5], [0.0, 0.0, 0.0]])


def test_both_files_of_a_dump_say_the_same(record: Path) -> None:
    rows = [list(map(int, line.split(","))) for line in COUNTS.splitlines()[1:]]
    columns = zip(("layer_id", "expert_id", "count"), zip(*rows, strict=True), strict=True)
    path = record.with_suffix(".pt")
    torch.save({name: torch.tensor(values) for name, values in columns}, path)
    assert read_counts(path) == read_counts(record)


def test_without_matplotlib(record: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as where it is not installed
    assert main(["experts", "plot", str(record)]) != 0
    assert "pip install 'sglang-plug[plot]'" in capsys.readouterr().err


def test_plot(record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert main(["experts", "plot", str(record)]) == 0
    assert Path(capsys.readouterr().out.strip()) == record.with_name("expert_distribution_1700000000.125000.png")
    out = tmp_path / "other.png"
    assert main(["experts", "plot", str(record), "--out", str(out)]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    assert main(["experts", "plot", str(record), "--out", str(tmp_path / "a.nonsense")]) != 0
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n", "its first line is not layer_id,expert_id,count"),
        ("", "its first line is not"),
        ("layer_id,expert_id,count\n", "no data after its first line"),
        ("layer_id,expert_id,count\n1,2\n", "line 2: three whole numbers expected, found '1,2'"),
        ("layer_id,expert_id,count\n1,2,3\n1,x,3\n", "line 3: three whole numbers"),
        ("layer_id,expert_id,count\n1,-2,3\n", "line 2: a negative number"),
    ],
)
def test_other_files(text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file.csv"
    path.write_text(text)
    assert main(["experts", "plot", str(path)]) != 0
    assert words in capsys.readouterr().err


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file.safetensors"
    assert main(["experts", "plot", str(path)]) != 0
    path.write_bytes(b"\xff\xfe\x00")
    assert main(["experts", "plot", str(path)]) != 0
    assert capsys.readouterr().err.count("as CSV") == 2
