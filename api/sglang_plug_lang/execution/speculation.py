"""Speculative generation: one request generates text for several ``gen`` of a program.

The request has no stop strings. The program's next ``gen`` gets the text before its own stop string; the text after it
is kept, and serves the next ``gen`` as long as the text that the program appends in between is the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from sglang_plug_lang.backends.base import Completion
from sglang_plug_lang.ir import GenerationOptions

SHARED_OPTIONS = frozenset(
    "max_tokens stop stop_token_ids temperature top_p top_k min_p frequency_penalty presence_penalty ignore_eos".split()
)
"""Options that a request for several ``gen`` may have; ``max_tokens`` is replaced by the limit of the request."""
Request = Callable[[GenerationOptions], Completion]


class Speculation:
    """Text that was generated ahead of the program.

    Args:
        token_limit: tokens of one request.
    """

    def __init__(self, token_limit: int) -> None:
        if token_limit < 1:
            raise ValueError(f"num_api_spec_tokens must be at least 1, got {token_limit}")
        self.token_limit = token_limit
        self._ahead = ""
        self._is_complete = False
        self._meta_info: Mapping[str, Any] = {}

    def append(self, text: str) -> None:
        """Note text that the program appended: the text ahead is kept only if it begins with that."""
        self._ahead = self._ahead[len(text) :] if self._ahead.startswith(text) else ""

    def applies_to(self, own: GenerationOptions, options: GenerationOptions) -> bool:
        """Return True if the text of a ``gen`` can be cut out of a longer generation.

        Args:
            own: options of this ``gen``: it has a stop string, and no other option.
            options: the same, with the program's defaults.
        """
        return own.names() == {"stop"} and bool(own.stop) and options.names() <= SHARED_OPTIONS

    def take(self, options: GenerationOptions, request: Request) -> Completion:
        """Return the text before the stop string; send a request only if the text ahead does not have it."""
        stops = [options.stop] if isinstance(options.stop, str) else list(options.stop or ())
        completion = self._cut(stops, self._is_complete) if self._ahead else None
        if completion is None:
            answer = request(dataclasses.replace(options, stop=None, max_tokens=self.token_limit))
            self._ahead, self._meta_info = answer.text, answer.meta_info
            self._is_complete = _reason(answer.meta_info) != "length"
            completion = self._cut(stops, True)
            assert completion is not None
        return completion

    def _cut(self, stops: list[str], takes_all: bool) -> Completion | None:
        """Take the text before the first stop string, or all text if that is allowed."""
        matches = [(position, stop) for stop in stops if (position := self._ahead.find(stop)) >= 0]
        if not matches and not takes_all:
            return None
        end, stop = min(matches, default=(len(self._ahead), None))
        text, self._ahead = self._ahead[:end], self._ahead[end:]
        return Completion(text, self._meta_info if stop is None else _stopped(self._meta_info, stop))


def _reason(meta_info: Mapping[str, Any]) -> Any:
    reason = meta_info.get("finish_reason")
    return reason.get("type") if isinstance(reason, Mapping) else reason


def _stopped(meta_info: Mapping[str, Any], stop: str) -> dict[str, Any]:
    """Return the facts of a request with the stop string as the reason why the text ends, in the backend's format."""
    is_native = isinstance(meta_info.get("finish_reason"), Mapping)
    return {**meta_info, "finish_reason": {"type": "stop", "matched": stop} if is_native else "stop"}
