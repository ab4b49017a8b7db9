"""Ordinary and strange texts, for the conformance tests of components that handle text."""

from __future__ import annotations

SENTENCE = "The quick brown fox jumps over the lazy dog, and 12 others do not. "
ANY_TEXT = (
    "",
    " ",
    "a",
    "Hello, world!",
    "  two  blanks at the start, and at the end  ",
    "\n\n\tlines\r\nand tabs\n",
    "def f(x):\n    return x[0]\n",
    "Grüße aus Köln, e\u0301 and é",
    "漢字かな交じり文、한국어",
    "🙂👨‍👩‍👧‍👦🏳️‍🌈 flags 🇨🇭",
    "עברית mixed with Latin, العربية",
    "zero\x00byte, bell\x07, delete\x7f",
    "\ufeffmark, \u200bzero width, \ufffd replaced",
    "lone \ud800 surrogate",
    "<s> </s> <|endoftext|> <|im_start|>user [INST] <unk> <0x41>",
    "Ġ Ċ ## @@",
    "a" * 300,
    "word " * 60,
)
"""No text is malformed: each of these must be taken."""
