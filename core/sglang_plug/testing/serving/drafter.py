"""Conformance test of drafters: the contract must hold for any sequence."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_plug.contracts.serving.drafting import Drafter, SequenceDrafter
from sglang_plug.testing.declared import factory_of
from sglang_plug.testing.growth import check_growth

MAX_DRAFT_TOKENS = (1, 2, 8, 64)
STEPS = 60
"""Number of calls for each sequence."""
SECRET, LEAK = 40, 4
"""Length of a sequence that belongs to one salt, and how many of its tokens in a row are no accident."""

LENGTHS = (4_000, 32_000)
"""Tokens of the outputs whose proposals are timed."""
COMPARED = 200
"""Tokens of the sequences whose proposals are compared, alone and together with another one."""


@dataclass(slots=True)
class _Talk:
    """A sequence with its drafter and the source of its next tokens."""

    name: str
    prompt: tuple[int, ...]
    drafter: SequenceDrafter
    next_tokens: Callable[[int], list[int]]
    output_len: int = 0


def check_drafter(drafter: str | Callable[[], Drafter], *, vocabulary: int = 300) -> None:
    """Run a drafter on repetitive and random sequences, several at a time, with empty and long prompts, and end them.

    What one tenant wrote is never proposed to another: sequences with different salts must not learn from each other,
    so that proposals are those of a sequence that is alone. The time of proposals does not depend on the length of the
    sequence.

    Args:
        drafter: a factory, or the name an installed plugin declared it under.
        vocabulary: tokens of the sequences are below it, and so must be proposed ones.

    Raises:
        AssertionError: names the first sequence that fails, and how.
        PluginError: no plugin, or more than one, declares the name.
    """
    make = factory_of("drafter", drafter)
    made = make()
    assert isinstance(made, Drafter), f"{type(made).__name__} is not a Drafter"
    generator = random.Random(1)
    talks = list(_conversations(made, generator, vocabulary))
    for _ in range(STEPS):
        for talk in talks:
            _propose(talk, generator, vocabulary)
    for talk in talks[::2]:  # the others are told nothing more, as if the server stopped
        _call(talk, "end", talk.drafter.end, tuple(talk.next_tokens(generator.randint(0, 4))))
    _call(talks[0], "begin", lambda: made.begin((1, 2, 3), salt="x").end((4, 5)))
    _check_salts(made, generator, vocabulary)
    _check_alone(make, generator)
    for case, values in (("random tokens", vocabulary), ("three tokens in any order", 3)):
        _check_growth(make(), [generator.randrange(values) for _ in range(LENGTHS[-1])], case)


def _conversations(made: Drafter, generator: random.Random, vocabulary: int) -> Sequence[_Talk]:
    def constant(count: int) -> list[int]:
        return [vocabulary - 1] * count

    def anything(count: int) -> list[int]:
        return [generator.randrange(vocabulary) for _ in range(count)]

    def few(count: int) -> list[int]:
        return [generator.randrange(3) for _ in range(count)]

    talks = []
    for name, tokens, length in (
        ("of one token again and again", constant, 5),
        ("of random tokens", anything, 40),
        ("of three tokens in any order", few, 10),
        ("with a long prompt", few, 5000),
        ("without a prompt", anything, 0),
    ):
        prompt = tuple(tokens(length))
        drafter = _begin(made, prompt, "", f"a sequence {name}")
        assert isinstance(drafter, SequenceDrafter), f"begin() returned {type(drafter).__name__}, not a SequenceDrafter"
        talks.append(_Talk(name, prompt, drafter, tokens))
    return talks


def _begin(made: Drafter, prompt: Sequence[int], salt: str, where: str) -> SequenceDrafter:
    try:
        return made.begin(prompt, salt=salt)
    except Exception as error:
        raise AssertionError(f"{where}: begin() raised {type(error).__name__}: {error}") from error


def _check_salts(made: Drafter, generator: random.Random, vocabulary: int) -> None:
    """Check that random tokens of one salt are not what a drafter of another salt proposes after their beginning."""
    secret = [generator.randrange(vocabulary) for _ in range(SECRET)]
    for _ in range(3):  # a drafter may learn only what occurs more than once
        owner = _begin(made, (), "owner", "a sequence of another salt")
        for token in secret:
            list(owner.propose([token], 1))
        owner.end([])
    other = _begin(made, tuple(secret[: SECRET // 2]), "other", "a sequence of another salt")
    proposed = list(other.propose(secret[SECRET // 2 : SECRET // 2 + 1], LEAK))
    following = secret[SECRET // 2 + 1 : SECRET // 2 + 1 + LEAK]
    assert proposed != following, (
        f"a sequence with the salt 'other': proposed {proposed}, which only a sequence with the salt 'owner' has had"
    )


def _check_alone(make: Callable[[], Drafter], generator: random.Random) -> None:
    """Check that a sequence gets the same proposals alone and in turn with a sequence of another salt."""
    first, second = ([generator.randrange(4) for _ in range(COMPARED)] for _ in range(2))
    alone = _proposals(make(), first, [])
    together = _proposals(make(), first, second)
    differing = [number for number, pair in enumerate(zip(alone, together, strict=True)) if pair[0] != pair[1]]
    assert not differing, (
        f"after {differing[0] + 1} tokens, a sequence gets {together[differing[0]]} next to a sequence of another "
        f"salt, and {alone[differing[0]]} alone: they share what belongs to one of them"
    )


def _proposals(made: Drafter, tokens: Sequence[int], others: Sequence[int]) -> list[list[int]]:
    """Return what is proposed after each of ``tokens``, in turn with those of another sequence."""
    first, second = made.begin((), salt="first"), made.begin((), salt="second")
    proposals = list[list[int]]()
    for number, token in enumerate(tokens):
        proposals.append(list(first.propose([token], LEAK)))
        if others:
            second.propose([others[number]], LEAK)
    first.end(())
    second.end(())
    return proposals


def _check_growth(made: Drafter, tokens: Sequence[int], case: str) -> None:
    def work(length: int) -> Callable[[], object]:
        sequence = made.begin((), salt="")
        return lambda: [sequence.propose([token], LEAK) for token in tokens[:length]]

    check_growth(work, LENGTHS, f"propose() of the tokens of an output of {case}")
    prompts = {length: tuple(tokens[:length]) for length in LENGTHS}
    check_growth(
        lambda length: lambda: made.begin(prompts[length], salt="").propose(tokens[:1], LEAK),
        LENGTHS,
        f"begin() of a prompt of {case}",
    )


def _propose(talk: _Talk, generator: random.Random, vocabulary: int) -> None:
    max_draft_tokens = generator.choice(MAX_DRAFT_TOKENS)
    tokens = talk.next_tokens(generator.randint(1, max_draft_tokens) if talk.output_len else 1)
    talk.output_len += len(tokens)
    passed = list(tokens)
    proposed = list(_call(talk, "propose", talk.drafter.propose, passed, max_draft_tokens))
    where = f"a sequence {talk.name}, after {talk.output_len} tokens of output"
    assert passed == tokens, f"{where}: the tokens that were given have been changed"
    assert len(proposed) <= max_draft_tokens, (
        f"{where}: proposed {len(proposed)} tokens where at most {max_draft_tokens} were asked for"
    )
    for token in proposed:
        assert isinstance(token, int) and 0 <= token < vocabulary, (
            f"{where}: proposed {token!r}, which is no token of a vocabulary of {vocabulary}"
        )


def _call(talk: _Talk, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except Exception as error:
        raise AssertionError(
            f"a sequence {talk.name}: {name}() raised {type(error).__name__}: {error}, after {talk.output_len} tokens"
        ) from error
