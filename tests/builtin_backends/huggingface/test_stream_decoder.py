from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from sglang_plug import StreamDecoder, Tokenizer, TokenizerSource
from sglang_plug_backends.huggingface.stream_decoder import ByteRules, ByteStream, TokenBytes, WindowStream, byte_rules
from sglang_plug_backends.huggingface.tokenizer import load_tokenizer

GENERATIVE = ["byte-level", "byte-fallback"]
KINDS = [*GENERATIVE, "metaspace", "wordpiece"]
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"), max_size=60)
SOME = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def tokenizers(folders: dict[str, Path]) -> dict[str, Tokenizer]:
    return {kind: load_tokenizer(TokenizerSource(path=folder)) for kind, folder in folders.items()}


@pytest.fixture(scope="module")
def libraries(folders: dict[str, Path]) -> dict[str, Any]:
    """Return the tokenizers of the ``tokenizers`` library for the folders."""
    return {kind: AutoTokenizer.from_pretrained(folder).backend_tokenizer for kind, folder in folders.items()}


def stream(decoder: StreamDecoder, tokens: Sequence[int], seed: int) -> str:
    """Return all text of a decoder that is fed in portions of random length."""
    generator, text, start = random.Random(seed), "", 0
    while start < len(tokens):
        length = generator.choice([1, 1, 1, 2, 5])
        text += decoder.feed(tokens[start : start + length])
        start += length
    return text + decoder.flush()


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), seed=st.integers(0, 99), skip=st.booleans())
@SOME
def test_portions_of_random_tokens_make_the_text_of_all(
    tokenizers: dict[str, Tokenizer], kind: str, data: st.DataObject, seed: int, skip: bool
) -> None:
    tokenizer = tokenizers[kind]
    tokens = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    streamed = stream(tokenizer.decoder(skip_special=skip), tokens, seed)
    assert streamed == tokenizer.decode(tokens, skip_special=skip)


@pytest.mark.parametrize("kind", GENERATIVE)
@given(text=TEXTS, seed=st.integers(0, 99))
@SOME
def test_any_text_survives(tokenizers: dict[str, Tokenizer], kind: str, text: str, seed: int) -> None:
    tokenizer = tokenizers[kind]
    tokens = tokenizer.encode(text, special=False)
    assert stream(tokenizer.decoder(skip_special=False), tokens, seed) == text


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), skip=st.booleans())
@SOME
def test_text_is_the_librarys_where_all_bytes_are_valid(
    tokenizers: dict[str, Tokenizer], libraries: dict[str, Any], kind: str, data: st.DataObject, skip: bool
) -> None:
    tokenizer, library = tokenizers[kind], libraries[kind]
    texts = data.draw(
        st.lists(st.sampled_from(["the dog", " fox", "</s>", "你", "  ", "runs", "<|user|>"]), max_size=6)
    )
    tokens = [token for text in texts for token in tokenizer.encode(text, special=False)]
    expected = library.decode(tokens, skip_special_tokens=skip)
    assert tokenizer.decode(tokens, skip_special=skip) == expected


@pytest.mark.parametrize("kind", GENERATIVE)
@given(prompt=TEXTS.filter(bool), output=TEXTS)
@SOME
def test_output_after_a_prompt_is_what_the_whole_has_more(
    tokenizers: dict[str, Tokenizer], kind: str, prompt: str, output: str
) -> None:
    tokenizer = tokenizers[kind]
    tokens = tokenizer.encode(prompt + output, special=False)
    for cut in range(1, len(tokens)):
        before = tokenizer.decoder(skip_special=False).feed(tokens[:cut])
        after = stream(tokenizer.decoder(skip_special=False, prompt=tokens[:cut]), tokens[cut:], cut)
        assert before + after == prompt + output


@pytest.mark.parametrize("kind", GENERATIVE)
def test_half_characters_wait_for_their_other_half(tokenizers: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = tokenizers[kind]
    tokens = tokenizer.encode("🦊", special=False)[-4:]
    decoder = tokenizer.decoder(prompt=tokenizer.encode("dog", special=False))
    assert [decoder.feed([token]) for token in tokens] == ["", "", "", "🦊"]
    assert decoder.feed(tokens[:2]) == ""
    assert decoder.flush() == "\ufffd"


def test_leading_space_belongs_to_the_output_after_text_but_not_after_a_special_token(
    tokenizers: dict[str, Tokenizer],
) -> None:
    tokenizer = tokenizers["byte-fallback"]
    the_dog = tokenizer.encode("the dog", special=False)
    assistant = tokenizer.encode("<|assistant|>", special=False)[-1]
    assert stream(tokenizer.decoder(prompt=the_dog), the_dog, 0) == " the dog"
    assert stream(tokenizer.decoder(prompt=[*the_dog, assistant]), the_dog, 0) == "the dog"
    assert stream(tokenizer.decoder(), the_dog, 0) == "the dog"


def test_wordpiece_follows_its_prompt(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["wordpiece"]
    prompt, output = tokenizer.encode("the dog", special=False), tokenizer.encode("runs, running", special=False)
    assert stream(tokenizer.decoder(prompt=prompt), output, 3) == " runs, running"


def test_work_per_token_does_not_grow_with_the_output() -> None:
    longest = 0

    def decode(tokens: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(tokens))
        return "x" * len(tokens)

    decoder = WindowStream(decode)
    assert "".join(decoder.feed([1]) for _ in range(500)) == "x" * 500
    assert longest == 2


def test_window_gives_up_waiting_for_a_character_that_never_ends() -> None:
    decoder = WindowStream(lambda tokens: "\ufffd" * len(tokens))
    text = "".join(decoder.feed([1]) for _ in range(100))
    assert 80 < len(text) <= 100
    assert len(text + decoder.flush()) == 100


def test_a_real_replacement_character_is_not_held_back() -> None:
    table = TokenBytes(ByteRules(replacements=(("▁", " "),)), ["\ufffd", "a"].__getitem__, {})
    assert ByteStream(table, ()).feed([0]) == "\ufffd"


def test_rules_are_read_from_the_decoder() -> None:
    replace = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    fallback, fuse = {"type": "ByteFallback"}, {"type": "Fuse"}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}

    def sequence(*steps: dict[str, object]) -> ByteRules | None:
        return byte_rules({"type": "Sequence", "decoders": list(steps)})

    assert byte_rules({"type": "ByteLevel"}) == ByteRules(byte_level=True)
    marks = (("▁", " "),)
    assert sequence(replace, fallback, fuse) == ByteRules(byte_fallback=True, replacements=marks)
    assert sequence(replace, fallback, fuse, strip) == ByteRules(byte_fallback=True, replacements=marks, strip=(" ", 1))
    never = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"}
    assert byte_rules(never) == ByteRules(replacements=marks)
    assert byte_rules({**never, "prepend_scheme": "first"}) == ByteRules(replacements=marks, first_drops="▁")


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "WordPiece", "prefix": "##"},
        {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"Regex": "x"}, "content": ""}]},
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 0, "stop": 1}]},
    ],
)
def test_other_decoders_are_left_to_the_library(decoder: dict[str, object] | None) -> None:
    assert byte_rules(decoder) is None


def test_byte_tokens_need_two_hexadecimal_digits() -> None:
    table = TokenBytes(ByteRules(byte_fallback=True), ["<0x41>", "<0xZZ>"].__getitem__, {})
    assert (table[0], table[1]) == (b"A", b"<0xZZ>")
