"""Tests that the watermark of the demo model's outputs is detected, and that other text has none."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import PluginOptions
from sglang_plug_api.offline.engine import Engine

FOLDER = str(Path(__file__).parents[2] / "plugins")
OPTIONS = PluginOptions(dirs=(FOLDER,), settings={"watermark": {"key": 1234}})
PROMPTS = ("Once upon a time", "The history of the city", "In the morning she")
PARAMS = {"max_new_tokens": 150, "ignore_eos": True, "sampling_seed": 7}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(max_total_tokens=2048, plugins=OPTIONS, log_level="warning") as engine:
        yield engine


def detected(answer: Any, folder: Path, *flags: str) -> dict[str, Any]:
    """Return the report of the command about an answer's text."""
    file = folder / "answer.txt"
    file.write_text(answer["text"], encoding="utf-8")
    command = [sys.executable, "-m", "sglang_plug", "detect-watermark", "--plugins-dir", FOLDER, "--json", *flags]
    done = subprocess.run([*command, str(file)], capture_output=True, text=True, check=False)
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if report["watermarked"] else 1), done.stderr
    return report


@pytest.mark.parametrize(("temperature", "delta"), [(0.0, 8.0), (1.5, 4.0)])
def test_watermarked_text_scores_high_and_other_text_low(
    engine: Engine, tmp_path: Path, temperature: float, delta: float
) -> None:
    """The demo model is certain of most tokens, so it takes a strong watermark."""
    params = {**PARAMS, "temperature": temperature}
    marked = engine.generate(PROMPTS, {**params, "watermark": {"delta": delta}})
    plain = engine.generate(PROMPTS, params)
    assert isinstance(marked, list) and isinstance(plain, list)
    joined, other = ({"text": " ".join(output["text"] for output in outputs)} for outputs in (marked, plain))
    report = detected(joined, tmp_path, "--key", "1234")
    assert report["watermarked"] and report["z_score"] > 6 and report["p_value"] < 1e-8
    for text, key in ((other, "1234"), (joined, "1235")):
        assert abs(detected(text, tmp_path, "--key", key)["z_score"]) < 4


def test_the_request_s_own_key_comes_first(engine: Engine, tmp_path: Path) -> None:
    params = {**PARAMS, "temperature": 1.5, "watermark": {"delta": 5.0, "gamma": 0.5, "key": 99}}
    answer = engine.generate(PROMPTS[0], params)
    assert detected(answer, tmp_path, "--key", "99", "--gamma", "0.5")["watermarked"]
    assert not detected(answer, tmp_path, "--key", "1234", "--gamma", "0.5")["watermarked"]
