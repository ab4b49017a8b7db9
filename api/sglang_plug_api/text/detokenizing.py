"""Conversion of the engine's outputs into text."""

from __future__ import annotations

from collections.abc import Sequence

from sglang_plug import DraftCounts, Output, Tokenizer
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.stops.stop_regex import PatternMatcher
from sglang_plug_api.stops.stop_strings import StopMatcher

from .job import Ending, Job, JobOutput


class Detokenizer:
    """Converts the engine's outputs into those of a job: text, stop strings, counts."""

    def __init__(self, job: Job, tokenizer: Tokenizer | None) -> None:
        sampling = job.sampling
        if tokenizer is None and sampling.stops:
            raise ApiError("the server runs with --skip-tokenizer-init: use stop_token_ids, not stop", param="stop")
        if tokenizer is None and sampling.stop_patterns is not None:
            raise ApiError(
                "the server runs with --skip-tokenizer-init: use stop_token_ids, not stop_regex", param="stop_regex"
            )
        self._sampling = sampling
        self._decoder = tokenizer.decoder(skip_special=sampling.skip_special, prompt=job.tokens) if tokenizer else None
        self._patterns = PatternMatcher(sampling.stop_patterns) if sampling.stop_patterns else None
        self._matcher: StopMatcher | None = None
        """``None``: the text is not searched."""
        if sampling.stops or self._patterns is not None:
            self._matcher = StopMatcher(sampling.stops, keep=sampling.keep_stop)
        self.count = 0
        self.cached_tokens = 0
        self._loaded_tokens: tuple[tuple[str, int], ...] = ()
        self.ending: Ending | None = None
        self._drafts: DraftCounts | None = None

    def feed(self, output: Output) -> JobOutput:
        """Return what ``output`` adds."""
        finish = output.finish
        tokens = output.tokens
        self.cached_tokens = max(self.cached_tokens, output.cached_tokens)
        self._loaded_tokens = output.loaded_tokens or self._loaded_tokens
        self._drafts = output.drafts or self._drafts
        ends_by_token = finish is not None and finish.matched is not None and not self._sampling.keep_stop
        visible_tokens = tokens[:-1] if ends_by_token else tokens
        text, used = self._decode(visible_tokens)
        if (stop := self._stop) is not None:
            tokens = tokens[:used]
            self.ending = Ending("stop", stop)
        elif finish is not None:
            text += self._flush()
            matched = self._stop
            self.ending = Ending(finish.reason, finish.matched) if matched is None else Ending("stop", matched)
        self.count += len(tokens)
        return JobOutput(
            text=text,
            tokens=tokens,
            logprobs=output.logprobs[: len(tokens)],
            prompt_logprobs=output.prompt_logprobs,
            ending=self.ending,
            completion_tokens=self.count,
            cached_tokens=self.cached_tokens,
            retractions=output.retractions,
            loaded_tokens=self._loaded_tokens,
            values=output.values,
            drafts=self._drafts,
        )

    def _decode(self, tokens: Sequence[int]) -> tuple[str, int]:
        """Decode ``tokens`` up to a stop string; return the text and how many tokens it took."""
        if self._decoder is None:
            return "", len(tokens)
        if self._matcher is None:
            return self._decoder.feed(tokens), len(tokens)
        text = []
        for index, token in enumerate(tokens):
            new_text = self._decoder.feed((token,))
            too_early = self.count + index < self._sampling.params.min_new_tokens
            text.append(self._searched(self._matcher, new_text, too_early=too_early))
            if self._stop is not None:
                return "".join(text), index + 1
        return "".join(text), len(tokens)

    def _flush(self) -> str:
        if self._decoder is None:
            return ""
        text = self._decoder.flush()
        if self._matcher is None:
            return text
        text = self._searched(self._matcher, text)
        return text if self._stop is not None else text + self._matcher.flush()

    @property
    def _stop(self) -> str | None:
        """The stop string or the pattern that has appeared in the text; of both, the string."""
        if self._matcher is None:
            return None
        return self._matcher.matched or (None if self._patterns is None else self._patterns.matched)

    def _searched(self, matcher: StopMatcher, text: str, *, too_early: bool = False) -> str:
        """Return the part of ``text`` that certainly belongs to the output, up to a stop string or a match.

        ``too_early``: nothing that ends in ``text`` stops the output.
        """
        end = None if self._patterns is None else self._patterns.feed(text, too_early=too_early)
        passed = matcher.feed(text[:end], too_early=too_early)
        if end is None or matcher.matched is not None:
            return passed
        return passed + matcher.flush()
