"""Reasoning between two tags at the beginning of an output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from sglang_plug import OutputParser, ReasoningMarks

from .reader import SequentialParser, Steps


@dataclass(frozen=True, slots=True)
class Tags:
    """The tags around reasoning; the first one of each kind is written, all are read."""

    openings: tuple[str, ...] = ("<think>",)
    closings: tuple[str, ...] = ("</think>",)
    answer_tags: tuple[tuple[str, str], ...] = ()
    """Pairs of tags around the answer, which are left out of it."""
    calls: tuple[str, ...] = ()
    """Marks of calls that end reasoning, too, where functions may be called: some models forget the closing tag."""


THINK = Tags()
CALLS = ("<tool_call>", "<|tool_calls_section_begin|>")


class Thinking(SequentialParser):
    """Reasoning in ``<think>…</think>``, optional, and then the answer. White space around both is dropped."""

    tags: ClassVar[Tags] = THINK

    def __init__(self, *, calls: bool = False) -> None:
        super().__init__()
        self._calls_end = calls

    @classmethod
    def for_functions(cls, functions: Mapping[str, Mapping[str, Any]]) -> OutputParser:
        """Return a parser that ends reasoning where a call begins, if there are functions to call."""
        return cls(calls=bool(functions))

    @classmethod
    def marks(cls, prompt: str, *, calls: bool) -> ReasoningMarks | None:
        """Return the tags, either of which may end the prompt."""
        end = prompt.rstrip()
        opening, closing = cls.tags.openings[0], cls.tags.closings[0]
        if end.endswith(closing):
            return None
        if end.endswith(opening.rstrip()):
            return ReasoningMarks((closing,), opened=opening)
        return ReasoningMarks((closing,), opening)

    def read(self) -> Steps[None]:
        """Read reasoning if present, then the answer."""
        source = self.input
        source.record()
        yield from source.space()
        if (yield from self._follows(self.tags.openings)):
            source.recorded()
            yield from self.read_reasoning()
        else:
            self.emit_text(source.recorded())
        yield from self.read_answer()

    def read_reasoning(self) -> Steps[None]:
        """Read reasoning and the tag after it."""
        source = self.input
        yield from source.space()
        waiting: list[str] = []
        calls = self.tags.calls if self._calls_end else ()
        while True:
            text, marker = source.before((*self.tags.closings, *calls))
            if kept := text.rstrip():
                self.emit_reasoning("".join((*waiting, kept)))
                waiting = []
            waiting.append(text[len(kept) :])
            if marker in calls:
                source.push_back(marker)
            elif marker:
                yield from source.space()
            if marker or source.at_end:
                return
            yield

    def read_answer(self) -> Steps[None]:
        """Read the answer without the tags around it."""
        for opening, closing in self.tags.answer_tags:
            if not (yield from self.input.follows(opening)):
                continue
            yield from self.input.space()
            if (yield from self.text_until(closing)):
                self.drop_space()
                yield from self.input.space()
        yield from self.emit_rest()

    def _follows(self, tags: tuple[str, ...]) -> Steps[bool]:
        for tag in tags:
            if (yield from self.input.follows(tag)):
                return True
        return False


class OpenThinking(Thinking):
    """Reasoning whose opening tag is in the prompt; a second opening tag is dropped."""

    @classmethod
    def marks(cls, prompt: str, *, calls: bool) -> ReasoningMarks | None:
        """Return the closing tag unless the prompt ends with it."""
        closing = cls.tags.closings[0]
        return None if prompt.rstrip().endswith(closing) else ReasoningMarks((closing,))

    def read(self) -> Steps[None]:
        """Read reasoning, then the answer."""
        yield from self.input.space()
        yield from self._follows(self.tags.openings)
        yield from self.read_reasoning()
        yield from self.read_answer()


class ThinkingBeforeCalls(Thinking):
    """Reasoning of models that may begin a call without closing their reasoning."""

    tags = replace(THINK, calls=CALLS)


class KimiThinking(Thinking):
    """Kimi-VL: tags with triangles."""

    tags = Tags(("◁think▷",), ("◁/think▷",))


class MistralThinking(Thinking):
    """Magistral and later: special tokens."""

    needs_special_tokens = True
    tags = Tags(("[THINK]",), ("[/THINK]",))


class SeedThinking(Thinking):
    """Seed-OSS: tags of its own."""

    needs_special_tokens = True
    tags = Tags(("<seed:think>",), ("</seed:think>",))


class GemmaThinking(Thinking):
    """Gemma 4: a channel of thoughts."""

    needs_special_tokens = True
    tags = Tags(("<|channel>thought\n",), ("<channel|>",))


class HunyuanThinking(Thinking):
    """Hunyuan A13B: the answer is between tags, too."""

    tags = replace(THINK, answer_tags=(("<answer>", "</answer>"),))


class ErnieThinking(OpenThinking):
    """Ernie 4.5 and X1: the output begins inside the reasoning, and the answer may be between tags."""

    tags = replace(THINK, answer_tags=(("<response>", "</response>"),))


class GraniteThinking(Thinking):
    """Granite 3: two sentences, or tags around reasoning and answer."""

    tags = Tags(
        ("Here is my thought process:", "Here's my thought process:", "<think>"),
        ("Here is my response:", "Here's my response:", "</think>"),
        (("<response>", "</response>"),),
    )

    @classmethod
    def marks(cls, prompt: str, *, calls: bool) -> ReasoningMarks | None:
        """Return nothing: the sentences cannot be told from tokens, so constraints apply from the first token on."""
        return None
