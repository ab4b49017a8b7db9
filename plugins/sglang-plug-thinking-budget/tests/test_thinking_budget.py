from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from sglang_plug_thinking_budget import register_logits_processors
from sglang_plug_thinking_budget.fields import ThinkingBudgetFields
from sglang_plug_thinking_budget.processor import RowBudget, ThinkingBudget
from sglang_plug_thinking_budget.reasoning_automaton import ReasoningAutomaton
from sglang_plug_thinking_budget.symbols import TokenSymbols
from sglang_plug_thinking_budget.transitions import Transitions

from sglang_plug import LogitsRow, ProcessorRequest, ReasoningBlock, SamplingParams, Vocabulary
from sglang_plug.testing import check_logits_processor

CPU = torch.device("cpu")
LONGER = (b"</", b"think", b">\n", b".</", b"<think>", b"</think>", b"analysis", b"final", b"\n<think>", b"e>x", b"nk>")
PIECES = [b"", b"", b"", b"", *(bytes([octet]) for octet in range(256)), *LONGER]
CHANNEL, MESSAGE, END, START = range(4)
SYMBOLS = TokenSymbols(PIECES)
VOCABULARY = Vocabulary(PIECES)


def of(*pieces: bytes) -> tuple[int, ...]:
    return tuple(map(PIECES.index, pieces))


def letters(text: bytes) -> tuple[int, ...]:
    return tuple(PIECES.index(bytes([octet])) for octet in text)


CLOSING = of(b"</", b"think", b">")
OPEN = ReasoningBlock((CLOSING,))
TAGGED = ReasoningBlock((CLOSING,), of(b"<think>"))
ONE_TOKEN = ReasoningBlock((of(b"</think>"),), of(b"<think>"))
CHANNELS = ReasoningBlock(
    ((END, START, *letters(b"as")), (END,), (START,)), (CHANNEL, *of(b"analysis"), MESSAGE), repeats=True
)
BLOCKS = {"open": OPEN, "tagged": TAGGED, "one token": ONE_TOKEN, "channels": CHANNELS}


def processor() -> ThinkingBudget:
    return ThinkingBudget(None, len(PIECES), CPU, VOCABULARY)


def prepared(
    thinking_budget: ThinkingBudget,
    block: ReasoningBlock | None,
    budget: int | None,
    *,
    stops: Sequence[int] = (),
    length: int = 99,
) -> RowBudget | None:
    params = SamplingParams(max_new_tokens=length, stop_token_ids=tuple(stops))
    fields = ThinkingBudgetFields(thinking_budget=budget)
    request = ProcessorRequest(params=params, fields=fields, prompt=(4,), constrained=bool(stops), reasoning=block)
    return thinking_budget.prepare(request)


def written(block: ReasoningBlock, budget: int, preferred: Sequence[int], steps: int = 24) -> bytes:
    """Return the output of a model that prefers one token of ``preferred`` at each position, and then dots."""
    thinking_budget = processor()
    batch = thinking_budget.batch([LogitsRow(state=prepared(thinking_budget, block, budget), tokens=[4], prompt_len=1)])
    preferred, output = [*preferred, *letters(b".") * steps], list[int]()
    for index in range(steps):
        logits = torch.zeros(1, len(PIECES))
        logits[0, preferred[index]] = 10.0
        token = batch.apply(logits, [index]).argmax(-1)
        batch.append(token)
        output.append(int(token))
    return b"".join(PIECES[token] or b"%d" % token for token in output).rstrip(b".")


@pytest.mark.parametrize(
    "block",
    [
        ReasoningBlock(((5, 6),)),
        ReasoningBlock(((5,),), (7,)),
        ReasoningBlock(((0, 9), (0,)), (11, 12), repeats=True),
        ReasoningBlock(((0,),), (0,), repeats=True),
    ],
)
def test_it_keeps_the_contract(block: ReasoningBlock) -> None:
    cases = [SamplingParams(processor_fields={"thinking_budget": budget}) for budget in (0, 1, 3)]
    check_logits_processor(
        ThinkingBudget, cases, request_fields=ThinkingBudgetFields, reasoning=block, vocabulary=len(block.ends) + 13
    )


@pytest.mark.parametrize("budget", range(9))
def test_the_end_is_written_after_the_budget(budget: int) -> None:
    thoughts = b"abcdefghij"
    assert written(OPEN, budget, letters(thoughts)).startswith(thoughts[:budget] + b"</think>")
    for block in (TAGGED, ONE_TOKEN):
        preferred = of(b"<think>") + letters(thoughts)
        assert written(block, budget, preferred).startswith(b"<think>" + thoughts[:budget] + b"</think>")


@pytest.mark.parametrize("begun", [(b"</",), (b"</", b"think"), (b".</", b"think"), (b"<", b"/", b"t", b"h"), (b"<",)])
def test_an_end_that_has_begun_is_completed(begun: tuple[bytes, ...]) -> None:
    text = b"".join(begun)
    assert (
        written(OPEN, 1 + len(begun), letters(b"a") + of(*begun)) == b"a" + text + b"</think>"[len(text.lstrip(b".")) :]
    )


def test_an_end_in_other_tokens_is_an_end() -> None:
    for end in (
        of(b".</", b"think", b">\n"),
        letters(b"</think>"),
        of(b"</", b"t", b"h", b"i", b"nk>"),
        of(b"</think>"),
    ):
        preferred = letters(b"ab") + end + letters(b"answer")
        text = b"".join(PIECES[token] for token in preferred)
        for budget in range(2 + len(end), 12):
            assert written(OPEN, budget, preferred) == text, (end, budget)


def test_an_answer_about_the_markers_is_no_reasoning() -> None:
    preferred = letters(b"Write ") + of(b"<think>") + letters(b" and")
    assert written(TAGGED, 0, preferred) == b"Write <think> and"
    assert written(TAGGED, 0, of(b"\n<think>")) == b"\n<think></think>", "white space may come first"
    preferred = of(b"<think>", b"</think>", b"<think>") + letters(b"abc")
    assert written(TAGGED, 1, preferred) == b"<think></think><think>abc", "tags are reasoning once"


def test_reasoning_that_repeats_has_one_budget_and_is_not_opened_again() -> None:
    opening, end = (CHANNEL, *of(b"analysis"), MESSAGE), (END, START, *letters(b"as"))
    once = written(CHANNELS, 2, (*opening, *letters(b"abcdef")))
    assert once == b"0analysis1ab23as"
    twice = (*opening, *letters(b"a"), *end, *opening, *letters(b"bcd"))
    assert written(CHANNELS, 3, twice) == b"0analysis1a23as0analysis1bc23as"
    again = written(CHANNELS, 1, twice)
    assert again.startswith(b"0analysis1a23as0") and b"0analysis" not in again[12:], "it is opened no more"
    assert written(CHANNELS, 0, (CHANNEL, *of(b"final"), MESSAGE, *letters(b"b"))) == b"0final1b"


def test_an_output_within_its_budget_is_left_alone() -> None:
    thinking_budget = processor()
    rows = [LogitsRow(state=prepared(thinking_budget, block, 5), tokens=[4], prompt_len=1) for block in BLOCKS.values()]
    batch, logits = thinking_budget.batch(rows), torch.randn(len(rows), len(PIECES))
    for count in range(5):
        assert torch.equal(batch.apply(logits.clone(), [count] * len(rows)), logits)
        batch.append(torch.full((len(rows),), 50))


@pytest.mark.parametrize("name", BLOCKS)
def test_tokens_lead_where_their_symbols_lead(name: str) -> None:
    """The tables of tokens agree with the automaton of symbols, which is compared to a search of the text below."""
    block = BLOCKS[name]
    transitions = Transitions.of(block, SYMBOLS)
    automaton = ReasoningAutomaton(SYMBOLS.of_all(block.opening), tuple(map(SYMBOLS.of_all, block.ends)), block.repeats)
    for state, row in zip(automaton.states, transitions.moves, strict=True):
        for token in range(len(PIECES)):
            target = automaton.follow(state, SYMBOLS.of(token))
            assert automaton.states[row[transitions.classes[token]]] == target, (state, PIECES[token])


def test_the_automaton_finds_what_a_search_finds() -> None:
    generator = random.Random(4)
    automaton = ReasoningAutomaton(tuple(b"<t>"), (tuple(b"</t>"), tuple(b"!!")), False)
    for _ in range(3000):
        text = "".join(generator.choices("<t>/! a", k=14))
        text = generator.choice(("", " \n", "<t>", " <t>")) + text
        state, expected = automaton.follow(automaton.start, text.encode()), "after"
        stripped = text.lstrip(" \n")
        if stripped.startswith("<t>"):
            remainder = stripped.removeprefix("<t>")
            expected = "after" if "</t>" in remainder or "!!" in remainder else "inside"
        elif "<t>".startswith(stripped):
            expected = "before"
        assert state.where == expected, text


def test_the_same_progress_on_the_host_and_on_the_device() -> None:
    generator = random.Random(9)
    thinking_budget = processor()
    rows = [(block, budget) for block in BLOCKS.values() for budget in (0, 2, 4)]
    states = [prepared(thinking_budget, *row) for row in rows]
    likely = [*range(4), *of(*LONGER), *letters(b"</think>a"), -1]
    tokens = [[4] for _ in rows]
    batch = thinking_budget.batch([LogitsRow(state=state, tokens=[4], prompt_len=1) for state in states])
    for step in range(40):
        more = generator.choices(likely, k=len(rows))
        batch.append(torch.tensor(more))
        for output, token in zip(tokens, more, strict=True):
            output.extend([token] if token >= 0 else [])
        fresh = thinking_budget.batch(
            [LogitsRow(state=state, tokens=output, prompt_len=1) for state, output in zip(states, tokens, strict=True)]
        )
        logits, counts = torch.randn(len(rows), len(PIECES)), [len(output) - 1 for output in tokens]
        assert torch.equal(batch.apply(logits.clone(), counts), fresh.apply(logits.clone(), counts)), step


def test_kinds_of_reasoning_that_come_later_do_not_disturb_earlier_ones() -> None:
    thinking_budget = processor()
    batch = thinking_budget.batch([LogitsRow(state=prepared(thinking_budget, OPEN, 0), tokens=[4], prompt_len=1)])
    for block in (CHANNELS, TAGGED):
        prepared(thinking_budget, block, 1)
        logits = batch.apply(torch.randn(1, len(PIECES)), [0])
        assert int(logits.argmax()) == CLOSING[0] and int((logits > -torch.inf).sum()) == 1


def test_without_the_texts_of_tokens_the_usual_tokens_are_known() -> None:
    thinking_budget = ThinkingBudget(None, len(PIECES), CPU, None)
    state = prepared(thinking_budget, OPEN, 2)
    tokens = [4, *letters(b"a"), *of(b"</")]
    logits = thinking_budget.batch([LogitsRow(state=state, tokens=tokens, prompt_len=1)]).apply(
        torch.zeros(1, len(PIECES)), [2]
    )
    assert int(logits.argmax()) == PIECES.index(b"think")


def test_requests_that_have_nothing_to_limit_do_not_use_it() -> None:
    thinking_budget = processor()
    assert prepared(thinking_budget, OPEN, None) is None
    assert prepared(thinking_budget, None, None) is None
    assert prepared(thinking_budget, ReasoningBlock(()), 3) is None, "the output has no reasoning"
    assert prepared(thinking_budget, OPEN, 99) is None, "the output is not longer"
    with pytest.raises(ValueError, match="^thinking_budget: .* --reasoning-parser"):
        prepared(thinking_budget, None, 3)
    with pytest.raises(ValueError, match="^thinking_budget: .* ends with the stop token"):
        prepared(thinking_budget, OPEN, 3, stops=[CLOSING[1]])
    with pytest.raises(ValueError, match="must be at least 0, got -1"):
        ThinkingBudgetFields(thinking_budget=-1)


def test_tables_of_a_large_vocabulary_are_small() -> None:
    generator = random.Random(1)
    pieces = [bytes(generator.choices(b"<>/think abc.\n", k=generator.randint(1, 6))) for _ in range(50_000)]
    symbols = TokenSymbols([*pieces, *(bytes([octet]) for octet in range(256))])
    block = ReasoningBlock(
        (tuple(50_000 + octet for octet in b"</think>"),), tuple(50_000 + octet for octet in b"<think>")
    )
    transitions = Transitions.of(block, symbols)
    assert len(transitions.moves) == 1 + 7 + 8 and len(transitions.moves[0]) < 200


def test_it_declares_a_processor() -> None:
    (spec,) = register_logits_processors()
    assert (spec.kind, spec.name, spec.order) == ("logits-processor", "thinking-budget", 1000)
