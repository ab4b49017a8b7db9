"""Conformance test of tokenizers: texts there and back, whole, in parts and in several threads."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from sglang_plug.config import ConfigError
from sglang_plug.contracts.text.tokenizer import TemplateError, Tokenizer, TokenizerLoader, TokenizerSource
from sglang_plug.plugins.registry import Plugins
from sglang_plug.testing.concurrency import check_threads
from sglang_plug.testing.growth import check_growth
from sglang_plug.testing.refusals import refusal_of

from .any_text import ANY_TEXT, SENTENCE
from .stream_decoder import check_stream_decoder

T = TypeVar("T")
MESSAGES = (
    {"role": "user", "content": "the first question"},
    {"role": "assistant", "content": "{{ 7 * 7 }} is no template"},
    {"role": "user", "content": "é漢🙂 </s>"},
)


HELD_BACK = 16
"""Maximum number of tokens whose text a decoder may hold back, of a text without incomplete characters."""


def check_tokenizer(
    tokenizer: str | TokenizerLoader, path: str | Path, *, texts: Sequence[str] = (), lossless: bool = True
) -> None:
    """Load the tokenizer of a folder, and compare what it gives for ordinary and for strange texts.

    Tokens are in the vocabulary and give the text back; streamed text is that of ``decode`` however the tokens are
    divided; special tokens are recognized; chats are rendered without interpreting their content; all methods can be
    called from several threads; the time grows in proportion to the text.

    Args:
        tokenizer: its loader, or the name an installed plugin declared it under.
        path: a folder with a tokenizer of its format, with a chat template if the format has any.
        texts: further texts to try.
        lossless: False for a vocabulary that does not keep every text, for example one of lower-case letters.

    Raises:
        AssertionError: says what is wrong, and for which text.
        PluginError: no plugin, or more than one, declares the name.
    """
    load: TokenizerLoader = tokenizer if callable(tokenizer) else _declared(tokenizer)
    _check_empty_folder(load)
    case = _TokenizerCase(load(TokenizerSource(path=Path(path))), [*ANY_TEXT, SENTENCE, *texts], lossless)
    _check_vocabulary(case)
    for text in case.texts:
        _check_text(case, text)
        check_stream_decoder(case.tokenizer, case.encode(text), repr(text[:40]))
    _check_special(case)
    _check_pair(case)
    _check_chats(case.tokenizer)
    _check_continued(case.tokenizer)
    _check_progress(case)
    _check_without_chats(load, Path(path), case)
    _check_threads(case)
    _check_growth(case.tokenizer)


@dataclass(frozen=True, slots=True)
class _TokenizerCase:
    """A tokenizer and the texts that it is tested with."""

    tokenizer: Tokenizer
    texts: Sequence[str]
    lossless: bool

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return _call(f"encode({_short(text)})", lambda: self.tokenizer.encode(text, special=special))


def _call(name: str, call: Callable[[], T]) -> T:
    try:
        return call()
    except Exception as error:
        raise AssertionError(f"{name} raised {type(error).__name__}: {error}") from error


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")


def _declared(name: str) -> TokenizerLoader:
    return Plugins.discover().get("tokenizer", name).factory()


def _check_empty_folder(load: TokenizerLoader) -> None:
    with TemporaryDirectory() as empty:
        error = refusal_of(lambda: load(TokenizerSource(path=Path(empty))), ConfigError, "an empty folder")
    assert error is not None, "an empty folder must be refused with ConfigError; a tokenizer was made of it"


def _check_vocabulary(case: _TokenizerCase) -> None:
    tokenizer = case.tokenizer
    size = tokenizer.vocab_size
    assert isinstance(size, int) and size > 0, f"vocab_size is {size!r}"
    for name in ("eos_token_ids", "special_token_ids"):
        ids = getattr(tokenizer, name)
        outside = [token for token in ids if not (isinstance(token, int) and 0 <= token < size)]
        assert not outside, f"{name} has {outside[0]!r}, which is no token of a vocabulary of {size}"
        assert getattr(tokenizer, name) == ids, f"{name} differs each time"
    assert isinstance(tokenizer.eos_token_ids, tuple), "eos_token_ids is not a tuple"
    assert isinstance(tokenizer.special_token_ids, frozenset), "special_token_ids is not a frozenset"
    for token in range(size):
        text = _call(f"piece({token})", lambda token=token: tokenizer.piece(token))  # type: ignore[misc]
        octets = _call(f"piece_bytes({token})", lambda token=token: tokenizer.piece_bytes(token))  # type: ignore[misc]
        assert isinstance(text, str), f"piece({token}) returned {type(text).__name__}, not a str"
        assert isinstance(octets, bytes), f"piece_bytes({token}) returned {type(octets).__name__}, not bytes"
        assert octets.decode("utf-8", "replace") == text, (
            f"piece({token}) is {text!r} and piece_bytes({token}) is {octets!r}, which is another text"
        )


def _check_text(case: _TokenizerCase, text: str) -> None:
    name = f"encode({_short(text)})"
    tokens = case.encode(text)
    assert isinstance(tokens, list), f"{name} returned {type(tokens).__name__}, not a list"
    size = case.tokenizer.vocab_size
    outside = [token for token in tokens if not (isinstance(token, int) and 0 <= token < size)]
    assert not outside, f"{name} returned {outside[0]!r}, which is no token of a vocabulary of {size}"
    copy = list(tokens)
    tokens += [0]
    again = case.encode(text)
    assert again == copy, f"{name} gives other tokens the second time: {again[:12]} instead of {copy[:12]}"
    _check_decoded(case, text, copy)


def _check_decoded(case: _TokenizerCase, text: str, tokens: list[int]) -> None:
    decode = case.tokenizer.decode
    passed = list(tokens)
    decoded = _call(f"decode() of {_short(text)}", lambda: decode(passed))
    assert isinstance(decoded, str), f"decode() of {_short(text)} returned {type(decoded).__name__}, not a str"
    assert passed == tokens, f"decode() of {_short(text)} changed the tokens that it was given"
    for kind in (tuple, lambda tokens: array("q", tokens)):
        other = _call(f"decode() of {_short(text)} as {type(kind([])).__name__}", lambda: decode(kind(tokens)))  # noqa: B023
        assert other == decoded, f"decode() of {_short(text)} depends on the kind of sequence"
    if set(tokens) & case.tokenizer.special_token_ids:
        return  # the text spells a special token, which is not part of the text that it gives
    if case.lossless:
        expected = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        assert decoded == expected, f"decode() of the tokens of {_short(text)} gives {_short(decoded)}"
        octets = b"".join(map(case.tokenizer.piece_bytes, tokens))
        assert octets.strip() == expected.encode().strip(), (
            f"the bytes of the tokens of {_short(text)} are {octets[:60]!r}"
        )


def _check_special(case: _TokenizerCase) -> None:
    """``special`` adds special tokens around the text, and ``skip_special`` leaves them out of it."""
    tokenizer = case.tokenizer
    plain, full = case.encode(SENTENCE), case.encode(SENTENCE, special=True)
    unrequested = set(plain) & tokenizer.special_token_ids if case.lossless else set()
    assert not unrequested, f"encode(special=False) adds special token {min(unrequested)} to {_short(SENTENCE)}"
    start = next((start for start in range(len(full)) if full[start : start + len(plain)] == plain), None)
    assert start is not None, (
        f"encode(special=True) gives {full[:12]}, in which the tokens {plain[:12]} of special=False are not"
    )
    added = [*full[:start], *full[start + len(plain) :]]
    strange = set(added) - tokenizer.special_token_ids
    assert not strange, f"encode(special=True) adds token {min(strange)}, which is not one of special_token_ids"
    text = tokenizer.decode(plain)
    for token in sorted(tokenizer.special_token_ids)[:8]:
        middle = [*plain, token, *plain]
        skipped, kept = tokenizer.decode(middle), tokenizer.decode(middle, skip_special=False)
        written = tokenizer.piece(token)
        assert not written or written not in skipped, f"decode() leaves special token {token} {written!r} in the text"
        assert skipped.startswith(text), f"decode() loses text next to special token {token}"
        assert not written.strip() or written.strip() in kept, (
            f"decode(skip_special=False) leaves out special token {token}, {written!r}"
        )


def _check_pair(case: _TokenizerCase) -> None:
    pair = _call("encode_pair()", lambda: case.tokenizer.encode_pair("the dog", "the fox"))
    assert isinstance(pair, list) and pair, f"encode_pair() returned {pair!r}, not a list of tokens"
    size = case.tokenizer.vocab_size
    assert all(isinstance(token, int) and 0 <= token < size for token in pair), "encode_pair() returned no tokens"
    for other in (("the fox", "the dog"), ("the dog", ""), ("", "the fox")):
        assert case.tokenizer.encode_pair(*other) != pair, f"encode_pair() gives the same for {other}"


def _check_chats(tokenizer: Tokenizer) -> None:
    messages = [dict(message) for message in MESSAGES]
    if tokenizer.chat_template() is None:
        try:
            tokenizer.chat(messages)
        except TemplateError:
            return
        except Exception as error:
            raise AssertionError(
                f"chat() without a template must raise TemplateError; it raised {type(error).__name__}: {error}"
            ) from error
        raise AssertionError("chat_template() is None, and chat() renders messages all the same")
    before = deepcopy(messages)
    prompt = _call("chat()", lambda: tokenizer.chat(messages))
    assert isinstance(prompt, str), f"chat() returned {type(prompt).__name__}, not a str"
    assert messages == before, "chat() changed the messages that it was given"
    for message in before:
        assert message["content"] in prompt, f"the prompt of chat() does not hold {message['content']!r}: {prompt!r}"
    assert tokenizer.chat(messages) == prompt, "chat() gives another prompt the second time"
    _check_refusals(tokenizer)


def _check_refusals(tokenizer: Tokenizer) -> None:
    """A template may refuse anything, but only with ``TemplateError``."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    strange: tuple[tuple[str, dict[str, Any]], ...] = (
        ("without messages", {"messages": []}),
        ("with an unknown role", {"messages": [{"role": "nobody", "content": "x"}]}),
        ("without content", {"messages": [{"role": "user"}]}),
        ("with tools", {"messages": [dict(MESSAGES[0])], "tools": tools}),
        ("with variables", {"messages": [dict(MESSAGES[0])], "variables": {"unknown": {"a": [1]}}}),
        ("that is continued", {"messages": [dict(message) for message in MESSAGES[:2]], "continue_final_message": True,
                               "add_generation_prompt": False}),
    )  # fmt: skip
    for name, options in strange:
        try:
            prompt = tokenizer.chat(**options)
        except TemplateError:
            continue
        except Exception as error:
            raise AssertionError(f"chat() {name} raised {type(error).__name__}, not TemplateError: {error}") from error
        assert isinstance(prompt, str), f"chat() {name} returned {type(prompt).__name__}, not a str"


def _check_continued(tokenizer: Tokenizer) -> None:
    """A message that is continued is the end of the prompt."""
    messages = [dict(message) for message in MESSAGES[:2]]
    if tokenizer.chat_template() is None:
        return
    try:
        prompt = tokenizer.chat(messages, continue_final_message=True, add_generation_prompt=False)
    except TemplateError:
        return
    content = MESSAGES[1]["content"]
    assert prompt.rstrip().endswith(content), (
        f"chat() with continue_final_message=True must end with the last message, {content!r}, so that the model "
        f"continues it; it ends with {prompt[-60:]!r}"
    )


def _check_progress(case: _TokenizerCase) -> None:
    """A decoder gives text as it becomes complete; it may hold back some tokens."""
    tokens, decoder = case.encode(SENTENCE * 4), case.tokenizer.decoder()
    whole, emitted = case.tokenizer.decode(tokens), 0
    for number, token in enumerate(tokens):
        emitted += len(decoder.feed([token]))
        complete = len(case.tokenizer.decode(tokens[: max(0, number + 1 - HELD_BACK)]))
        assert emitted >= min(complete, len(whole)) - HELD_BACK, (
            f"feed() of {number + 1} tokens of {_short(SENTENCE)} returned {emitted} characters, and the text "
            "before the "
            f"last {HELD_BACK} tokens has {complete}: only what may still change is held back"
        )


def _check_without_chats(load: TokenizerLoader, path: Path, case: _TokenizerCase) -> None:
    """A tokenizer that renders no chats, as in the engine, must be the same otherwise."""
    other = load(TokenizerSource(path=path, chats=False))
    assert other.encode(SENTENCE) == case.tokenizer.encode(SENTENCE), "with chats=False the tokens of a text differ"


def _check_threads(case: _TokenizerCase) -> None:
    tokenizer, calls = case.tokenizer, dict[str, Callable[[], object]]()
    for text in case.texts:
        tokens = case.encode(text)
        calls[f"encode({_short(text)})"] = lambda text=text: tokenizer.encode(text)  # type: ignore[misc]
        calls[f"decode() of {_short(text)}"] = lambda tokens=tokens: tokenizer.decode(tokens)  # type: ignore[misc]
        calls[f"decoder() of {_short(text)}"] = lambda tokens=tokens: _streamed(tokenizer, tokens)  # type: ignore[misc]
    calls["encode_pair()"] = lambda: tokenizer.encode_pair("the dog", "the fox")
    if tokenizer.chat_template() is not None:
        calls["chat()"] = lambda: tokenizer.chat([dict(MESSAGES[0])])
    check_threads(calls, "a tokenizer")


def _streamed(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    decoder = tokenizer.decoder()
    return "".join([*(decoder.feed([token]) for token in tokens), decoder.flush()])


def _check_growth(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode(SENTENCE, special=False)
    sizes = (500, 4000)
    check_growth(lambda count: lambda: tokenizer.encode(SENTENCE * count), (100, 800), "encode() of a long text")
    check_growth(lambda count: lambda: tokenizer.decode((tokens * count)[:count]), sizes, "decode() of many tokens")
    check_growth(
        lambda count: lambda: tokenizer.encode_pair(SENTENCE * count, SENTENCE * count),
        (100, 800),
        "encode_pair() of two long texts",
    )
    if tokenizer.chat_template() is not None:
        check_growth(
            lambda count: lambda: tokenizer.chat([dict(MESSAGES[number % 2]) for number in range(count + 1)]),
            (500, 4000),
            "chat() of many messages",
        )
    check_growth(
        lambda count: lambda: _streamed(tokenizer, (tokens * count)[:count]), sizes, "feed() of one token after another"
    )
