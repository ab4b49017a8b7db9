"""Incremental decoding of tokens to text.

Nearly every vocabulary of a generative model is one of two kinds, byte-level BPE or sentencepiece with byte
fallback, and in both a token stands for bytes that do not depend on its neighbours. So these are decoded
byte by byte: exact, with constant work per token, and with no text held back but a character's missing bytes.
All other vocabularies (WordPiece, ...) are decoded by their library over a short window.

Invalid bytes become U+FFFD as in ``bytes.decode(errors="replace")``. The tokenizers library differs from this
only for byte-fallback vocabularies, where one invalid byte spoils the valid ones around it.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LONGEST_CHARACTER = 4
"""Maximum bytes of a UTF-8 character."""
MAX_HELD = 16
"""Tokens after which the window emits its text even if it seems to end in an incomplete character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRules:
    """Rules that map a vocabulary's tokens to bytes."""

    byte_level: bool = False
    """True if tokens are written in GPT-2's alphabet of 256 printable characters."""
    byte_fallback: bool = False
    """True if ``<0x41>`` is a byte."""
    replacements: tuple[tuple[str, str], ...] = ()
    first_drops: str = ""
    """Character that is dropped from the first token of a text."""
    strip: tuple[str, int] = ("", 0)
    """Text that is removed from the start of the whole, and its maximum count."""


def byte_rules(decoder: Mapping[str, Any] | None) -> ByteRules | None:
    """Return the byte rules equivalent to a ``tokenizer.json`` decoder, or ``None`` if there are none."""
    steps = _flat(decoder)
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return ByteRules(byte_level=True)
    if [kind for kind in kinds if kind not in ("ByteFallback", "Fuse")] == ["Metaspace"]:
        mark = steps[kinds.index("Metaspace")]
        drops = "" if mark.get("prepend_scheme") == "never" else mark["replacement"]
        return ByteRules(
            byte_fallback="ByteFallback" in kinds, replacements=((mark["replacement"], " "),), first_drops=drops
        )
    if kinds[-1:] == ["Strip"] and kinds[-2:-1] == ["Fuse"] and not steps[-1].get("stop"):
        strip, steps = (steps[-1]["content"], steps[-1]["start"]), steps[:-1]
    else:
        strip = ("", 0)
    replacements = []
    for step in steps:
        if step["type"] == "Replace" and "String" in step["pattern"]:
            replacements.append((step["pattern"]["String"], step["content"]))
        elif step["type"] not in ("ByteFallback", "Fuse"):
            return None
    if not replacements:
        return None
    return ByteRules(byte_fallback="ByteFallback" in kinds, replacements=tuple(replacements), strip=strip)


def _flat(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for item in decoder["decoders"] for step in _flat(item)]
    return [decoder]


def _byte_level_alphabet() -> dict[str, int]:
    """Return GPT-2's alphabet: printable characters map to themselves, the others to 256, 257, ..."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


class TokenBytes:
    """The bytes of each token, computed lazily.

    Args:
        rules: of the vocabulary.
        name: a token's written form, ``None`` if there is no such token.
        added: tokens outside the model's own vocabulary, with their text.
    """

    def __init__(self, rules: ByteRules, name: Callable[[int], str | None], added: Mapping[int, str]) -> None:
        self.rules, self._name, self._added = rules, name, added
        self._alphabet = _byte_level_alphabet() if rules.byte_level else {}
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token: int) -> bytes:
        result = self._known.get(token)
        if result is None:
            result = self._known[token] = self._of(token, self._name(token) or "")
        return result

    def first(self, token: int) -> bytes:
        """Return the bytes of a token that starts a text."""
        if not self.rules.first_drops:
            return self[token]
        return self._of(token, (self._name(token) or "").replace(self.rules.first_drops, ""))

    def _of(self, token: int, name: str) -> bytes:
        if self.rules.byte_level:
            if token in self._added:
                return self._added[token].encode()
            try:
                return bytes(self._alphabet[character] for character in name)
            except KeyError:
                return name.encode()
        if self.rules.byte_fallback and len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
            try:
                return bytes([int(name[3:5], 16)])
            except ValueError:
                pass
        for old, new in self.rules.replacements:
            name = name.replace(old, new)
        return name.encode()


class ByteStream:
    """A ``StreamDecoder`` for vocabularies whose tokens stand for bytes."""

    def __init__(self, table: TokenBytes, skipped: Collection[int]) -> None:
        self._table, self._skipped = table, skipped
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = True
        self._strips = table.rules.strip[1]

    def follow(self, prompt: Sequence[int]) -> None:
        """Continue after ``prompt``, which does not end with a special token: its last character may be incomplete."""
        self._at_start, self._strips = False, 0
        tail = prompt[-LONGEST_CHARACTER:]
        self._utf8.decode(b"".join(self._table[token] for token in tail if token not in self._skipped))

    def feed(self, tokens: Sequence[int]) -> str:
        visible = [token for token in tokens if token not in self._skipped]
        if not visible:
            return ""
        parts = [self._table[token] for token in visible]
        if self._at_start:
            self._at_start, parts[0] = False, self._table.first(visible[0])
        return self._stripped(self._utf8.decode(b"".join(parts)))

    def flush(self) -> str:
        return self._stripped(self._utf8.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        content = self._table.rules.strip[0]
        while self._strips and text:
            if not text.startswith(content):
                self._strips = 0
                break
            text = text[len(content) :]
            self._strips -= 1
        return text


class WindowStream:
    """A ``StreamDecoder`` for all other vocabularies: it decodes a window and emits the growth of its text.

    ``decode`` is the library's function from tokens to text. The window starts one portion of tokens earlier, because a
    token's text may depend on the token before it.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int] = ()) -> None:
        self._decode = decode
        self._window = list(prompt)
        self._emitted = len(self._window)  # number of tokens of the window whose text has been emitted

    def feed(self, tokens: Sequence[int]) -> str:
        self._window += tokens
        text, before = self._decode(self._window), self._decode(self._window[: self._emitted])
        held = len(self._window) - self._emitted
        if len(text) <= len(before) or (text.endswith("\ufffd") and held <= MAX_HELD):
            return ""
        return self._give(text, before)

    def flush(self) -> str:
        return self._give(self._decode(self._window), self._decode(self._window[: self._emitted]))

    def _give(self, text: str, before: str) -> str:
        self._window = self._window[self._emitted :]
        self._emitted = len(self._window)
        return text[len(before) :]
