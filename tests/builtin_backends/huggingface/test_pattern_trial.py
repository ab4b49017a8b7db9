"""Tokenizers that would block a thread, or take minutes to load, are refused at the start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from sglang_plug import ConfigError, TokenizerSource
from sglang_plug_backends.huggingface.pattern_trial import PatternTrial, regular_expressions
from sglang_plug_backends.huggingface.tokenizer import MAX_ADDED_TOKENS, HuggingFaceTokenizer, load_tokenizer

from .conftest import Save

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
HERE = Path("folder")


def splitting(folder: Path, pattern: str) -> Path:
    """Return the tokenizer of ``folder``, changed to split by ``pattern``."""
    file = folder / "tokenizer.json"
    data = json.loads(file.read_text())
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, data["pre_tokenizer"]]}
    file.write_text(json.dumps(data))
    return folder


def adding(folder: Path, count: int) -> Path:
    file = folder / "tokenizer.json"
    data = json.loads(file.read_text())
    token = {key: False for key in ("single_word", "lstrip", "rstrip", "normalized", "special")}
    data["added_tokens"] += [{"id": 1000 + index, "content": f"<{index}>", **token} for index in range(count)]
    file.write_text(json.dumps(data))
    return folder


@pytest.mark.parametrize("pattern", [r"(a*)*b|.", r"(?:x+x+)+y|.", r"(\w+\s?)*!?\z|."])
def test_expressions_that_backtrack_without_end_are_refused(save_tokenizer: Save, pattern: str) -> None:
    folder = splitting(save_tokenizer(), pattern)
    with pytest.raises(
        ConfigError, match="splits text by an expression that cannot be served: it (takes|fails)"
    ) as caught:
        load_tokenizer(TokenizerSource(path=folder, chats=False))
    assert str(folder) in str(caught.value) and repr(pattern) in str(caught.value)


def test_expressions_of_known_tokenizers_are_served(save_tokenizer: Save) -> None:
    folder = splitting(save_tokenizer(), LLAMA_3)
    tokenizer = load_tokenizer(TokenizerSource(path=folder, chats=False))
    assert tokenizer.decode(tokenizer.encode("Hello 1234!", special=False)) == "Hello 1234!"


def test_a_text_that_the_library_gives_up_on_is_an_ordinary_error(save_tokenizer: Save) -> None:
    library = PreTrainedTokenizerFast.from_pretrained(splitting(save_tokenizer(), r"(?:x+x+)+y|."))
    tokenizer = HuggingFaceTokenizer(library, None, ())
    with pytest.raises(RuntimeError, match="cannot split this text"):
        tokenizer.encode("x" * 100)
    assert tokenizer.encode("Hello", special=False)


def test_expressions_are_found_wherever_they_stand() -> None:
    part: Any = {"a": [{"pattern": {"Regex": "x"}}, {"pattern": {"String": "y"}}], "pattern": {"Regex": "z"}}
    assert sorted(regular_expressions(part)) == ["x", "z"]
    PatternTrial({"pattern": {"String": "(a*)*b"}}).finish(HERE)


def test_more_added_tokens_than_can_be_read(save_tokenizer: Save) -> None:
    folder = adding(save_tokenizer(), MAX_ADDED_TOKENS)
    with pytest.raises(ConfigError, match=r"tokenizer.json has \d+ added tokens; the maximum is 131072"):
        load_tokenizer(TokenizerSource(path=folder, chats=False))
    listed = {str(index): {"content": f"<{index}>"} for index in range(MAX_ADDED_TOKENS + 1)}
    folder = save_tokenizer(added_tokens_decoder=listed)
    with pytest.raises(ConfigError, match="tokenizer_config.json has 131073 added tokens"):
        load_tokenizer(TokenizerSource(path=folder, chats=False))


pieces = st.recursive(
    st.sampled_from(["a", ".", "\\w", "\\s", "[a-z]", "x", "$", "\\p{L}"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("*+?")).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join),
    ),
    max_leaves=8,
)


@settings(max_examples=5 if settings().derandomize else 100)
@given(st.lists(pieces, min_size=1, max_size=4))
def test_a_trial_ends_whatever_the_expressions_are(patterns: list[str]) -> None:
    trial = PatternTrial([{"Regex": pattern} for pattern in patterns])
    try:
        trial.finish(HERE)
    except ConfigError as error:
        assert "cannot be served" in str(error)
    finally:
        trial.close()
