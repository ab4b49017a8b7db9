"""A whole engine with the demo model: drafts of any quality do not change outputs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from sglang_plug import Constraint, LogprobOptions, Output
from sglang_plug.engine.messages.api_messages import Abort
from tests.core.engine.execution.overlap_bench import QUESTIONS, SCHEMA, Engine, numbers, without_numbers

from .drafting_bench import Guess, speculate

pytestmark = pytest.mark.whole_engine

MAX_DRAFT_TOKENS = 5


def guess_following(sequences: Sequence[Sequence[int]], fraction: float, vocabulary: int) -> Guess:
    """Return a guess that follows the given sequences, with wrong tokens at the rate ``fraction``."""
    generator = random.Random(3)

    def guess(tokens: list[int], max_draft_tokens: int) -> list[int]:
        going = [
            list(sequence[len(tokens) : len(tokens) + max_draft_tokens])
            for sequence in sequences
            if sequence[: len(tokens)] == tokens
        ]
        longest = max(going, key=len, default=[])
        return [generator.randrange(vocabulary) if generator.random() < fraction else token for token in longest]

    return guess


@cache
def run_without_drafts(
    fill: Callable[[Engine], None], finish: Callable[[Engine], None], graphs: bool, pool: int
) -> tuple[list[list[int]], dict[str, Output]]:
    """Run requests without drafts; return the sequences of prompt and output, and the outputs."""
    engine = Engine(overlap=False, graphs=graphs, pool=pool)
    fill(engine)
    prompts = {message.request.id: message.request.tokens for message in engine.messages}  # type: ignore[union-attr]
    finish(engine)
    return [[*prompts[id], *output.tokens] for id, output in engine.outputs.items()], engine.outputs


def compare(
    fill: Callable[[Engine], None],
    *,
    fraction: float,
    finish: Callable[[Engine], None] = Engine.finish,
    graphs: bool = True,
    overlap: bool = False,
    pool: int = 4096,
) -> Engine:
    """Run the same requests without and with drafts; assert equal outputs, with log-probabilities up to rounding."""
    known, outputs = run_without_drafts(fill, finish, graphs, pool)
    engine = Engine(overlap=overlap, graphs=graphs, pool=pool)
    width = engine.loop.info["vocab_size"]
    speculate(
        engine.loop.scheduler,
        guess_following(known, fraction, width),
        max_draft_tokens=MAX_DRAFT_TOKENS,
        step_tokens=64,
        vocabulary=width,
    )
    fill(engine)
    finish(engine)
    for id, output in outputs.items():
        actual = engine.outputs[id]
        assert bare(actual) == bare(output), id
        assert numbers(actual) == pytest.approx(numbers(output), abs=1e-4), id
    return engine


def bare(output: Output) -> tuple[object, ...]:
    plain = without_numbers(output)
    return plain.tokens, plain.finish, plain.logprobs, plain.prompt_logprobs


def all_ways(engine: Engine) -> None:
    for number, question in enumerate(QUESTIONS):
        engine.submit(f"greedy {number}", question, max_new_tokens=6 + 5 * number)
    engine.submit("seeded", QUESTIONS[0], temperature=1.0, seed=7, top_p=0.9)
    engine.submit("cut", QUESTIONS[1], temperature=1.3, seed=8, top_k=5, min_p=0.02)
    engine.submit("once", QUESTIONS[3], max_new_tokens=1)
    penalties = {"frequency_penalty": 0.8, "presence_penalty": 0.4, "repetition_penalty": 1.2}
    engine.submit("penalised", QUESTIONS[2], **penalties)
    engine.submit("penalised too", QUESTIONS[3], temperature=1.0, seed=9, max_new_tokens=40, **penalties)
    stops = tuple(range(0, 400, 3))
    engine.submit("stopped", QUESTIONS[0], stop_token_ids=stops)
    engine.submit("stopped late", QUESTIONS[0], stop_token_ids=stops, min_new_tokens=9)
    engine.submit("ignores its end", QUESTIONS[2], stop_token_ids=(), max_new_tokens=50)
    engine.submit("biased", QUESTIONS[1], logit_bias={50: 4.0}, max_new_tokens=15)
    engine.submit("reported", QUESTIONS[2], logprobs=LogprobOptions(start=2, top=3, ids=(5, 6)))
    engine.submit("seeded and reported", QUESTIONS[0], temperature=0.7, seed=5, logprobs=LogprobOptions(top=2))


@pytest.mark.parametrize("fraction", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("overlap", [False, True])
def test_all_ways_of_sampling(fraction: float, overlap: bool) -> None:
    engine = compare(all_ways, fraction=fraction, overlap=overlap)
    counts = {id: output.drafts for id, output in engine.outputs.items()}
    assert counts["penalised"] is counts["penalised too"] is counts["once"] is None
    assert all(counts[id] for id in ("greedy 3", "seeded", "cut", "stopped late", "biased", "reported"))
    accepted = sum(drafts.accepted for drafts in counts.values() if drafts is not None)
    assert accepted > 60 if fraction == 0.0 else accepted > 20 if fraction == 0.2 else accepted <= 2
    if overlap:
        assert engine.ahead > 0


@pytest.mark.parametrize("overlap", [False, True])
def test_constrained_outputs_with_drafted_ones(overlap: bool) -> None:
    engine = compare(with_a_constrained_one, fraction=0.2, overlap=overlap)
    assert engine.outputs["constrained"].drafts is None
    assert engine.outputs["free"].drafts is not None


def with_a_constrained_one(engine: Engine) -> None:
    engine.submit("constrained", "Tell me about a person.", constraint=Constraint("json_schema", SCHEMA))
    engine.submit("free", QUESTIONS[0], max_new_tokens=60, stop_token_ids=())


def test_without_graphs() -> None:
    compare(all_ways, fraction=0.2, graphs=False)


def test_sequences_that_are_retracted_go_on_with_drafts() -> None:
    def fill(engine: Engine) -> None:
        for number in range(6):
            engine.submit(
                str(number), QUESTIONS[number % 4], temperature=1.0, seed=number, max_new_tokens=60, stop_token_ids=()
            )

    engine = compare(fill, fraction=0.2, pool=220)
    assert sum(output.retractions for output in engine.outputs.values()) > 0
    assert any(output.drafts for output in engine.outputs.values())


def test_an_aborted_request_gives_everything_back() -> None:
    def fill(engine: Engine) -> None:
        engine.submit("a", QUESTIONS[0], max_new_tokens=40, stop_token_ids=())
        engine.submit("b", QUESTIONS[1], max_new_tokens=40, stop_token_ids=())

    def finish(engine: Engine) -> None:
        for _ in range(6):
            engine.step()
        engine.outputs.pop("b")
        engine.messages.append(Abort(("b",)))
        engine.finish()
        engine.outputs.pop("b")
        accounts = engine.loop.scheduler.accounts()
        assert accounts["running"] == 0 and accounts["free"] + accounts["cached"] == accounts["capacity"]

    compare(fill, fraction=0.1, finish=finish)


def test_behind_a_draft_whose_logits_are_not_finite_nothing_is_taken() -> None:
    plain, engine = Engine(overlap=False, graphs=False), Engine(overlap=False, graphs=False)
    for current in (plain, engine):
        current.submit("a", QUESTIONS[0], max_new_tokens=12, stop_token_ids=())
        if current is plain:
            current.finish()
    tokens = plain.outputs["a"].tokens
    known = [*engine.messages[0].request.tokens, *tokens]  # type: ignore[union-attr]
    speculate(engine.loop.scheduler, guess_following([known], 0.0, 1), vocabulary=10**6)

    def broken(layer: nn.Module, inputs: object, logits: Tensor) -> None:
        logits[1:] = torch.nan

    lm_head = engine.loop.runner.components.model.get_submodule("lm_head")
    with lm_head.register_forward_hook(broken):
        output = engine.finish()["a"]
    assert output.tokens == tokens
    assert output.drafts is not None and output.drafts.drafted > output.drafts.accepted == 0
