"""Reasoning between two tags at the beginning of an output."""

from __future__ import annotations

from sglang_plug import ReasoningMarks

from .reader import SequentialParser, Steps

OPENING, CLOSING = "<think>", "</think>"


class Thinking(SequentialParser):
    """Reasoning in ``<think>…</think>``, optional, and then the answer. White space around both is dropped."""

    @classmethod
    def marks(cls, prompt: str, *, calls: bool) -> ReasoningMarks | None:
        """Return the tags, either of which may end the prompt."""
        end = prompt.rstrip()
        if end.endswith(CLOSING):
            return None
        if end.endswith(OPENING):
            return ReasoningMarks((CLOSING,), opened=OPENING)
        return ReasoningMarks((CLOSING,), OPENING)

    def read(self) -> Steps[None]:
        """Read reasoning if present, then the answer."""
        source = self.input
        source.record()
        yield from source.space()
        if (yield from source.follows(OPENING)):
            source.recorded()
            yield from self._think()
        else:
            self.tell_text(source.recorded())
        yield from self.tell_rest()

    def _think(self) -> Steps[None]:
        source = self.input
        yield from source.space()
        waiting: list[str] = []
        while True:
            text, marker = source.before((CLOSING,))
            if kept := text.rstrip():
                self.tell_reasoning("".join((*waiting, kept)))
                waiting = []
            waiting.append(text[len(kept) :])
            if marker:
                yield from source.space()
            if marker or source.at_end:
                return
            yield


class OpenThinking(Thinking):
    """Reasoning whose opening tag is in the prompt; a second opening tag is dropped."""

    @classmethod
    def marks(cls, prompt: str, *, calls: bool) -> ReasoningMarks | None:
        """Return the closing tag unless the prompt ends with it."""
        return None if prompt.rstrip().endswith(CLOSING) else ReasoningMarks((CLOSING,))

    def read(self) -> Steps[None]:
        """Read reasoning, then the answer."""
        yield from self.input.space()
        yield from self.input.follows(OPENING)
        yield from self._think()
        yield from self.tell_rest()
