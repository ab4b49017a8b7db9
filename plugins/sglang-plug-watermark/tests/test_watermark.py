from __future__ import annotations

import json
import random
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest
import torch
from sglang_plug_watermark import register_commands, register_logits_processors
from sglang_plug_watermark.command import command
from sglang_plug_watermark.fields import WatermarkFields, WatermarkOptions, WatermarkSettings
from sglang_plug_watermark.greenlist import Detection, detect, is_green, mixed
from sglang_plug_watermark.processor import Watermark
from sglang_plug_watermark.processor import mixed as mixed_on_device

from sglang_plug import ConfigError, LogitsRow, Plugins, SamplingParams
from sglang_plug.testing import check_logits_processor

CPU = torch.device("cpu")
VOCABULARY = 500


def test_it_keeps_the_contract() -> None:
    cases = [
        SamplingParams(processor_fields={"watermark": fields})
        for fields in ({}, {"gamma": 0.6, "delta": 5.0}, {"key": -(1 << 62)})
    ]
    check_logits_processor(Watermark, cases, settings=WatermarkSettings(), request_fields=WatermarkFields)


def test_the_hash_is_the_same_on_the_host_and_on_the_device() -> None:
    numbers = [0, 1, 4095, 1 << 31, (1 << 32) - 1, -5, 1 << 40, *random.Random(1).sample(range(1 << 32), 50)]
    assert mixed_on_device(torch.tensor(numbers)).tolist() == [mixed(number) for number in numbers]


@pytest.mark.parametrize("key", [0, 7, -3, (1 << 63) + 9])
def test_green_tokens_are_those_that_are_detected(key: int) -> None:
    processor = Watermark(WatermarkSettings(), VOCABULARY, CPU)
    options = WatermarkOptions(gamma=0.4, delta=3.0, key=key)
    batch = processor.batch([LogitsRow(state=options, tokens=[5, 77], prompt_len=1)])
    logits = batch.apply(torch.zeros(1, VOCABULARY), [1])[0]
    assert (logits > 0).tolist() == [is_green(key, 77, token, 0.4) for token in range(VOCABULARY)]
    assert set(logits.tolist()) == {0.0, 3.0}
    assert float((logits > 0).float().mean()) == pytest.approx(0.4, abs=0.08)


def test_which_tokens_are_green_depends_on_the_key_and_on_the_token_before() -> None:
    lists = {
        (key, last): [is_green(key, last, token, 0.5) for token in range(200)] for key in (1, 2) for last in (3, 4)
    }
    assert len({tuple(tokens) for tokens in lists.values()}) == 4


def test_the_score_is_that_of_the_paper() -> None:
    assert Detection(200, 100, 0.25).z_score == pytest.approx(8.165, abs=1e-3)
    assert Detection(200, 50, 0.25).p_value == pytest.approx(0.5)
    assert detect([], 1, 0.5).z_score == detect([3], 1, 0.5).z_score == 0.0
    assert detect([1, 2] * 50, 1, 0.5).counted == 2


def test_random_tokens_have_the_scores_of_the_normal_distribution() -> None:
    generator = random.Random(5)
    scores = [detect(generator.choices(range(5000), k=200), seed, 0.25).z_score for seed in range(300)]
    assert sum(scores) / 300 == pytest.approx(0.0, abs=0.25)
    assert sum(score * score for score in scores) / 300 == pytest.approx(1.0, abs=0.3)
    assert max(scores) < 4.5


@pytest.mark.parametrize("wrong", [{"gamma": 0.0}, {"gamma": 1.0}, {"delta": -1.0}, {"delta": float("nan")}])
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        WatermarkOptions(**wrong)


def run(*arguments: str) -> int:
    parser, plugins = ArgumentParser(), Plugins.discover()
    command.arguments(parser, plugins)
    return command.run(parser.parse_args(arguments), plugins)


def test_the_command_reads_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, generator = tmp_path / "tokens.json", random.Random(2)
    plain = generator.choices(range(VOCABULARY), k=100)
    marked = [0]
    while len(marked) < 100:
        token = generator.randrange(VOCABULARY)
        if is_green(9, marked[-1], token, 0.25):
            marked.append(token)
    for tokens, status in ((plain, 1), (marked, 0)):
        file.write_text(json.dumps(tokens))
        assert run("--tokens", "--key", "9", "--json", str(file)) == status
        assert json.loads(capsys.readouterr().out)["watermarked"] is (status == 0)
    assert run("--tokens", "--key", "10", str(file)) == 1, "another key reveals nothing"


@pytest.mark.parametrize(("text", "message"), [("x", "is not JSON"), ('["a"]', "is not a list of token ids")])
def test_what_cannot_be_read_is_reported(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "tokens.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        run("--tokens", str(file))
    with pytest.raises(ConfigError, match="cannot be read"):
        run(str(tmp_path / "nothing"))


def test_it_declares_a_processor_and_a_command() -> None:
    (processor,), (command,) = register_logits_processors(), register_commands()
    assert (processor.kind, processor.name) == ("logits-processor", "watermark")
    assert (command.kind, command.name) == ("command", "detect-watermark")
