"""Conformance test of stream decoders: the text must not depend on how the tokens are divided."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from sglang_plug.contracts.text.tokenizer import StreamDecoder, Tokenizer

DIVISIONS = 4
REPLACEMENT = "\ufffd"


def check_stream_decoder(tokenizer: Tokenizer, tokens: Sequence[int], name: str) -> None:
    """Feed tokens of a text in parts, whole, cut off and after a prompt; raise ``AssertionError`` for a difference."""
    expected = tokenizer.decode(tokens)
    for parts in _divisions(tokens):
        text = "".join(_fed(tokenizer.decoder(), parts, name))
        assert text == expected, (
            f"decoder() of {name}, fed {[len(part) for part in parts]} tokens at a time, gives {text[-60:]!r}, and "
            f"decode() gives {expected[-60:]!r}"
        )
    _check_interleaved(tokenizer, tokens, name)
    _check_characters(tokenizer, tokens, name)
    _check_special(tokenizer, tokens, name)
    _check_prompt(tokenizer, tokens, name)


def _fed(decoder: StreamDecoder, parts: Sequence[Sequence[int]], name: str) -> list[str]:
    texts = []
    for part in parts:
        passed = list(part)
        try:
            text = decoder.feed(passed)
        except Exception as error:
            raise AssertionError(f"feed() of {name} raised {type(error).__name__}: {error}") from error
        assert isinstance(text, str), f"feed() of {name} returned {type(text).__name__}, not a str"
        assert passed == list(part), f"feed() of {name} changed the tokens that it was given"
        passed.clear()  # the caller may use its list again
        texts.append(text)
    try:
        return [*texts, decoder.flush()]
    except Exception as error:
        raise AssertionError(f"flush() of {name} raised {type(error).__name__}: {error}") from error


def _divisions(tokens: Sequence[int]) -> Iterator[list[Sequence[int]]]:
    yield [tokens]
    yield [[token] for token in tokens]
    yield [[], tokens, []]
    generator = random.Random(len(tokens))
    for _ in range(DIVISIONS):
        cuts = sorted(generator.randint(0, len(tokens)) for _ in range(3))
        ends = [0, *cuts, len(tokens)]
        yield [tokens[start:end] for start, end in zip(ends, ends[1:], strict=False)]


def _check_interleaved(tokenizer: Tokenizer, tokens: Sequence[int], name: str) -> None:
    first, second = tokenizer.decoder(), tokenizer.decoder()
    texts, others = list[str](), list[str]()
    for token in tokens:
        texts.append(first.feed([token]))
        others.append(second.feed([token]))
    assert "".join([*texts, first.flush()]) == "".join([*others, second.flush()]) == tokenizer.decode(tokens), (
        f"decoder() of {name}: two decoders that are used in turn disturb each other"
    )


def _check_characters(tokenizer: Tokenizer, tokens: Sequence[int], name: str) -> None:
    """No part of a character is given; an incomplete one becomes U+FFFD when nothing follows."""
    complete = tokenizer.decode(tokens)
    if REPLACEMENT in complete:
        return
    for end in range(min(len(tokens), 24) + 1):
        parts = _fed(tokenizer.decoder(), [[token] for token in tokens[:end]], name)
        fed, flushed = "".join(parts[:-1]), parts[-1]
        assert REPLACEMENT not in fed, f"feed() of the first {end} tokens of {name} gives a part of a character"
        assert complete.startswith(fed), (
            f"feed() of the first {end} tokens of {name} gives {fed[-40:]!r}, which the text does not begin with"
        )
        assert fed + flushed == tokenizer.decode(tokens[:end]), (
            f"flush() after the first {end} tokens of {name} gives {flushed!r}, and decode() of them "
            f"{tokenizer.decode(tokens[:end])[-40:]!r}"
        )


def _check_special(tokenizer: Tokenizer, tokens: Sequence[int], name: str) -> None:
    for special in sorted(tokenizer.special_token_ids)[:3]:
        mixed = [special, *tokens, special]
        for skip in (True, False):
            text = "".join(_fed(tokenizer.decoder(skip_special=skip), [[token] for token in mixed], name))
            expected = tokenizer.decode(mixed, skip_special=skip)
            assert text == expected, (
                f"decoder(skip_special={skip}) of {name} between tokens {special} gives {text[:60]!r}, and decode() "
                f"{expected[:60]!r}"
            )


def _check_prompt(tokenizer: Tokenizer, tokens: Sequence[int], name: str) -> None:
    """After a prompt, the text is the one that continues the prompt's."""
    half = len(tokens) // 2
    prompt, output = tokens[:half], tokens[half:]
    if not prompt or set(tokens) & tokenizer.special_token_ids:
        return
    before, whole = tokenizer.decode(prompt), tokenizer.decode(tokens)
    if REPLACEMENT in before or not whole.startswith(before):
        return  # the cut is within a character, or the text depends on its neighbours
    text = "".join(_fed(tokenizer.decoder(prompt=prompt), [[token] for token in output], name))
    assert text == whole[len(before) :], (
        f"decoder(prompt=...) of {name} gives {text[:60]!r} after a prompt of {half} tokens, and the text goes on with "
        f"{whole[len(before) :][:60]!r}"
    )
