"""Tests of the benchmark of structured outputs, with a model that takes almost no time."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest
import torch

from benchmarks.common.engine_driver import nobody
from benchmarks.common.models import SHAPES
from benchmarks.grammar import COMPILED, FORCED, LONG, Bench, compiling, jumps, measure, vocabulary
from sglang_plug import Finish, Output
from sglang_plug.engine.messages.api_messages import StepOutputs


def test_the_made_up_vocabulary_has_the_size_asked_for_and_no_piece_twice() -> None:
    result = vocabulary(5000)
    text = [piece for piece in result.pieces if piece]
    assert result.size == 5000 and len(text) == 4997
    assert len(set(text)) > 4900
    with pytest.raises(ValueError, match="no vocabulary"):
        vocabulary(10**8)


def test_a_vocabulary_from_a_file(tmp_path: Path) -> None:
    ranks = tmp_path / "ranks"
    ranks.write_text(
        "".join(f"{base64.b64encode(item).decode()} {at}\n" for at, item in enumerate((b"a", b" b", b"\xff")))
    )
    assert vocabulary(5, ranks).pieces == [b"", b"", b"", b"a", b" b"]


def test_a_request_that_fails_is_no_measurement() -> None:
    nobody(StepOutputs([Output(id="a", finish=Finish("length"))]))
    with pytest.raises(RuntimeError, match="too long"):
        nobody(StepOutputs([Output(id="a", finish=Finish("error", message="too long"))]))


def test_steps_and_compiling_are_measured(tmp_path: Path) -> None:
    bench = Bench("tiny", tmp_path, "xgrammar", vocabulary(SHAPES["tiny"].vocabulary), running=2, tokens=20)
    with torch.inference_mode():
        for name in LONG:
            cost = measure(bench, name, 2, blocks=2, steps=2)
            assert cost.plain > 0 and cost.quartiles[0] <= cost.ratio <= cost.quartiles[1]
    bench.loop.close()
    for name in COMPILED:
        result = compiling(bench.backend, name, 1)
        assert result is not None and result.bytes > 0


def test_forced_tokens_save_steps() -> None:
    saved, plain = asyncio.run(jumps(True)), asyncio.run(jumps(False))
    assert [item.constraint for item in saved] == [item.constraint for item in plain] == list(FORCED)
    for jump, other in zip(saved, plain, strict=True):
        assert other.steps == other.tokens and 0 < jump.steps < other.steps and jump.seconds > 0
