from __future__ import annotations

import codecs
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import ConfigError, PluginError, TemplateError, TokenizerSource
from sglang_plug.testing import check_tokenizer

START, END = 256, 257


class Stream:
    def __init__(self, skipped: frozenset[int] = frozenset()) -> None:
        self.utf8, self.skipped = codecs.getincrementaldecoder("utf-8")("replace"), skipped

    def feed(self, tokens: Sequence[int]) -> str:
        return self.utf8.decode(b"".join(NAMES[token] for token in tokens if token not in self.skipped))

    def flush(self) -> str:
        return self.utf8.decode(b"", final=True)


NAMES = [bytes([octet]) for octet in range(256)] + [b"<s>", b"</s>"]


class Bytes:
    """A correct tokenizer with a token for each byte, and two special tokens."""

    eos_token_ids: Any = (END,)
    special_token_ids: Any = frozenset({START, END})
    vocab_size: Any = 258

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        tokens = list(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode())
        return [START, *tokens] if special else tokens

    def encode_pair(self, first: str, second: str) -> list[int]:
        return [*self.encode(first), END, *self.encode(second, special=False)]

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        stream = self.decoder(skip_special=skip_special)
        return str(stream.feed(tokens) + stream.flush())

    def piece(self, token: int) -> str:
        return self.piece_bytes(token).decode("utf-8", "replace")

    def piece_bytes(self, token: int) -> bytes:
        return NAMES[token]

    def chat_template(self, *, tools: bool = False) -> str | None:
        return "built in"

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Any = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Any = None,
    ) -> str:
        try:
            prompt = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
            return prompt.rstrip() if continue_final_message else prompt
        except KeyError as error:
            raise TemplateError(f"a message lacks {error}") from error

    def decoder(self, *, skip_special: bool = True, prompt: Sequence[int] = ()) -> Any:
        return Stream(self.special_token_ids if skip_special else frozenset())


def loader(kind: type[Any]) -> Any:
    def load(source: TokenizerSource) -> Any:
        if not (source.path / "tokenizer").exists():
            raise ConfigError("no tokenizer there")
        return kind()

    return load


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer").touch()
    return tmp_path


def test_a_correct_tokenizer_passes(folder: Path) -> None:
    check_tokenizer(loader(Bytes), folder, texts=("more",))


class OutsideTheVocabulary(Bytes):
    vocab_size = 250


class EosList(Bytes):
    eos_token_ids = [END]


class EosOutside(Bytes):
    eos_token_ids = (300,)


class LowerCase(Bytes):
    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return super().encode(text.lower(), special=special)


class StripsText(Bytes):
    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return super().encode(text.strip(), special=special)


class Normalizes(Bytes):
    def encode(self, text: str, *, special: bool = True) -> list[int]:
        import unicodedata

        return super().encode(unicodedata.normalize("NFC", text), special=special)


class NoSurrogates(Bytes):
    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return [START, *text.encode()] if special else list(text.encode())


class Ascii(Bytes):
    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return super().encode(text.encode("ascii", "ignore").decode(), special=special)


class StopsAtNul(Bytes):
    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return super().encode(text.partition("\x00")[0], special=special)


class Truncates(Bytes):
    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return super().encode(text, special=special)[:256]


class IgnoresSpecial(Bytes):
    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return super().encode(text, special=True)


class SecretStart(Bytes):
    special_token_ids = frozenset({END})


class Caches(Bytes):
    """Returns its cached list, which the caller may change."""

    def __init__(self) -> None:
        self.cache: dict[Any, list[int]] = {}

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return self.cache.setdefault((text, special), super().encode(text, special=special))


class ChangesTokens(Bytes):
    def decode(self, tokens: Any, *, skip_special: bool = True) -> str:
        if isinstance(tokens, list) and skip_special:
            tokens[:] = [token for token in tokens if token < 256]
            tokens += [END]
        return super().decode(tokens, skip_special=skip_special)


class NeedsLists(Bytes):
    def decode(self, tokens: Any, *, skip_special: bool = True) -> str:
        return super().decode([] + tokens, skip_special=skip_special)


class KeepsSpecial(Bytes):
    def decoder(self, *, skip_special: bool = True, prompt: Sequence[int] = ()) -> Any:
        return Stream()


class DropsSpecial(Bytes):
    def decoder(self, *, skip_special: bool = True, prompt: Sequence[int] = ()) -> Any:
        return Stream(self.special_token_ids)


class DecodesEach(Bytes):
    def decoder(self, *, skip_special: bool = True, prompt: Sequence[int] = ()) -> Any:
        class Each(Stream):
            def feed(self, tokens: Sequence[int]) -> str:
                return b"".join(NAMES[token] for token in tokens if token not in self.skipped).decode(errors="replace")

        return Each(self.special_token_ids if skip_special else frozenset())

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        return b"".join(NAMES[token] for token in tokens if not skip_special or token < 256).decode(errors="replace")


class ForgetsTheRest(Bytes):
    def decoder(self, *, skip_special: bool = True, prompt: Sequence[int] = ()) -> Any:
        class Silent(Stream):
            def flush(self) -> str:
                return ""

        return Silent(self.special_token_ids if skip_special else frozenset())

    decode = DecodesEach.decode


class HoldsEverything(Bytes):
    """Holds back the last token, and loses it at the end."""

    def decoder(self, *, skip_special: bool = True, prompt: Sequence[int] = ()) -> Any:
        class Late(Stream):
            held: tuple[int, ...] = ()

            def feed(self, tokens: Sequence[int]) -> str:
                every = (*self.held, *tokens)
                self.held = every[-1:]
                return super().feed(every[:-1])

        return Late(self.special_token_ids if skip_special else frozenset())

    decode = DecodesEach.decode


class OneDecoder(Bytes):
    def __init__(self) -> None:
        self.stream = Stream(self.special_token_ids)

    def decoder(self, *, skip_special: bool = True, prompt: Sequence[int] = ()) -> Any:
        if not skip_special:
            return Stream()
        self.stream.utf8.reset()
        return self.stream

    decode = DecodesEach.decode


class RepeatsThePrompt(Bytes):
    def decoder(self, *, skip_special: bool = True, prompt: Sequence[int] = ()) -> Any:
        stream = super().decoder(skip_special=skip_special)
        if prompt:
            inner = stream.feed
            first = [list(prompt)]
            stream.feed = lambda tokens: inner([*(first.pop() if first else []), *tokens])
        return stream


class KeepsTheCallersList(Bytes):
    """Keeps the caller's list, and reads it only when further tokens are fed."""

    def decoder(self, *, skip_special: bool = True, prompt: Sequence[int] = ()) -> Any:
        class Lazy(Stream):
            before: Sequence[int] = ()

            def feed(self, tokens: Sequence[int]) -> str:
                text = super().feed(self.before)
                self.before = tokens
                return text

            def flush(self) -> str:
                return super().feed(self.before) + super().flush()

        return Lazy(self.special_token_ids if skip_special else frozenset())

    decode = DecodesEach.decode


class Shared(Bytes):
    """Shares a buffer between calls, which is not thread-safe."""

    def __init__(self) -> None:
        self.buffer: list[int] = []

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        self.buffer = [START] if special else []
        time.sleep(0.0001)  # lets another thread run
        for octet in super().encode(text, special=False):
            self.buffer.append(octet)
        return list(self.buffer)


class SharedTemplate(Bytes):
    prompt = ""

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        self.prompt = super().chat(messages, **options)
        time.sleep(0.0005)
        prompt, self.prompt = self.prompt, ""
        return prompt


class Interprets(Bytes):
    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        return super().chat(messages, **options).replace("{{ 7 * 7 }}", "49")


class LastMessageOnly(Bytes):
    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        return super().chat(messages[-1:], **options)


class EditsMessages(Bytes):
    def chat(self, messages: Any, **options: Any) -> str:
        for message in messages:
            message.setdefault("name", "")
        return super().chat(messages, **options)


class WrongRefusal(Bytes):
    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        return "".join(f"{message['role']}: {message['content']}\n" for message in messages)


class ChatsWithoutTemplate(Bytes):
    def chat_template(self, *, tools: bool = False) -> str | None:
        return None


class IgnoresTheSecond(Bytes):
    def encode_pair(self, first: str, second: str) -> list[int]:
        return self.encode(first)


class AnotherPiece(Bytes):
    def piece(self, token: int) -> str:
        return super().piece(token).strip()


class UntranslatedPieces(Bytes):
    def piece_bytes(self, token: int) -> bytes:
        return b"\xc4\xa0" if token == 32 else super().piece_bytes(token)


class NoPieceForSpecial(Bytes):
    def piece_bytes(self, token: int) -> bytes:
        return {octet: bytes([octet]) for octet in range(256)}[token]


class SlowStream(Bytes):
    """Decodes all tokens again for each new one, which takes quadratic time."""

    def decoder(self, *, skip_special: bool = True, prompt: Sequence[int] = ()) -> Any:
        class Again(Stream):
            every: tuple[int, ...] = ()
            emitted = 0

            def text(self, final: bool) -> str:
                octets = b"".join([NAMES[token] for token in self.every if token not in self.skipped])
                return codecs.getincrementaldecoder("utf-8")("replace").decode(octets, final)

            def feed(self, tokens: Sequence[int]) -> str:
                self.every += tuple(tokens)
                return self.grown(self.text(False))

            def flush(self) -> str:
                return self.grown(self.text(True))

            def grown(self, text: str) -> str:
                new, self.emitted = text[self.emitted :], len(text)
                return new

        return Again(self.special_token_ids if skip_special else frozenset())


class SlowEncoding(Bytes):
    def encode(self, text: str, *, special: bool = True) -> list[int]:
        tokens: tuple[int, ...] = (START,) if special else ()
        for octet in super().encode(text, special=False):
            tokens = (*tokens, octet)
        return list(tokens)


class GivesNothingBeforeTheEnd(Bytes):
    def decoder(self, *, skip_special: bool = True, prompt: Sequence[int] = ()) -> Any:
        class Held(Stream):
            text = ""

            def feed(self, tokens: Sequence[int]) -> str:
                self.text += super().feed(tokens)
                return ""

            def flush(self) -> str:
                return self.text + super().flush()

        return Held(self.special_token_ids if skip_special else frozenset())


class NeverContinues(Bytes):
    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        return f"{super().chat(messages, **options)}assistant:"


class SlowPairs(Bytes):
    def encode_pair(self, first: str, second: str) -> list[int]:
        for end in range(len(first)):
            first[:end].encode()
        return super().encode_pair(first, second)


class SlowChats(Bytes):
    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        for number in range(len(messages)):
            [dict(message) for message in messages[:number]]
        return super().chat(messages, **options)


BUGS: list[tuple[type[Any], str]] = [
    (OutsideTheVocabulary, "which is no token of a vocabulary of 250"),
    (EosList, "eos_token_ids is not a tuple"),
    (EosOutside, "eos_token_ids has 300"),
    (LowerCase, r"decode\(\) of the tokens of 'Hello, world!'"),
    (StripsText, r"decode\(\) of the tokens of ' '"),
    (Normalizes, "e\u0301"),
    (NoSurrogates, "raised UnicodeEncodeError"),
    (Ascii, "Grüße"),
    (StopsAtNul, "zero"),
    (Truncates, "aaaaaa"),
    (IgnoresSpecial, r"encode\(special=False\) adds special token 256"),
    (SecretStart, r"adds token 256, which is not one of special_token_ids"),
    (Caches, "gives other tokens the second time"),
    (ChangesTokens, "changed the tokens that it was given"),
    (NeedsLists, r"decode\(\) of .* as tuple raised TypeError"),
    (KeepsSpecial, "leaves special token 256"),
    (DropsSpecial, "leaves out special token 256"),
    (DecodesEach, r"decoder\(\) of .*Grüße"),
    (ForgetsTheRest, r"flush\(\) after the first \d+ tokens"),
    (HoldsEverything, r"decoder\(skip_special=False\) of"),
    (OneDecoder, "two decoders that are used in turn"),
    (RepeatsThePrompt, r"decoder\(prompt=...\)"),
    (KeepsTheCallersList, r"decoder\(skip_special=False\) of"),
    (Shared, "called from 6 threads at once"),
    (SharedTemplate, r"called from 6 threads at once, chat\(\)"),
    (Interprets, r"does not hold '\{\{ 7 \* 7 \}\}"),
    (LastMessageOnly, "does not hold 'the first question'"),
    (EditsMessages, "changed the messages"),
    (WrongRefusal, r"chat\(\) without content raised KeyError, not TemplateError"),
    (ChatsWithoutTemplate, r"chat_template\(\) is None"),
    (IgnoresTheSecond, r"encode_pair\(\) gives the same"),
    (AnotherPiece, "which is another text"),
    (UntranslatedPieces, "the bytes of the tokens"),
    (NoPieceForSpecial, r"piece\(256\) raised KeyError"),
    (SlowStream, r"feed\(\) of one token after another: time grows"),
    (SlowEncoding, r"encode\(\) of a long text: time grows"),
    (GivesNothingBeforeTheEnd, "only what may still change is held back"),
    (NeverContinues, "continue_final_message=True must end with the last message"),
    (SlowPairs, r"encode_pair\(\) of two long texts: time grows"),
    (SlowChats, r"chat\(\) of many messages: time grows"),
]


@pytest.mark.planted_bug("tokenizer")
@pytest.mark.parametrize(("kind", "message"), BUGS, ids=lambda value: getattr(value, "__name__", ""))
def test_planted_bugs_are_named(kind: type[Any], message: str, folder: Path) -> None:
    with pytest.raises(AssertionError, match=message):
        check_tokenizer(loader(kind), folder)


@pytest.mark.planted_bug("tokenizer")
def test_a_loader_that_takes_any_folder_fails(folder: Path) -> None:
    with pytest.raises(AssertionError, match="an empty folder must be refused with ConfigError"):
        check_tokenizer(lambda source: Bytes(), folder)
    with pytest.raises(AssertionError, match="it raised FileNotFoundError"):
        check_tokenizer(lambda source: (source.path / "tokenizer").read_text() and Bytes(), folder)  # type: ignore


def test_a_name_that_nobody_declares(folder: Path) -> None:
    with pytest.raises(PluginError, match="no tokenizer named"):
        check_tokenizer("nobody", folder)
