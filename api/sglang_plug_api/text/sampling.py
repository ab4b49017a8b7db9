"""Sampling parameters of a request, completed with the defaults, for the engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sglang_plug import SamplingParams
from sglang_plug.contracts.sampling_params import RequestFieldError
from sglang_plug.plugins.request_fields import RequestFields
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.options.config import ServerConfig
from sglang_plug_api.stops.stop_regex import StopPatterns

DEFAULT_NEW_TOKENS = 128
MAX_STOPS = 32
MAX_STOP_CHARACTERS = 1024
MAX_PATTERN_CHARACTERS = 256
MAX_BIASES = 4096
INT64 = 1 << 63
FROM_CHECKPOINT = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Keys of ``generation_config.json`` that become defaults, but for those that no logits processor applies."""
ENGINE_FIELDS = frozenset(field.name for field in fields(SamplingParams))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """One request's parameters: those of the engine, and those that concern text."""

    params: SamplingParams
    stops: tuple[str, ...] = ()
    stop_patterns: StopPatterns | None = None
    """Regular expressions whose first match ends the output, of which it is the end."""
    keep_stop: bool = False
    """Leave the stop string or stop token in the output."""
    skip_special: bool = True
    n: int = 1
    open_length: bool = False
    """The request names no length: ``params.max_new_tokens`` are as many as fit."""


class SamplingDefaults:
    """Completes and checks the sampling parameters of requests.

    What a request names comes first, then the operator's ``--preferred-sampling-params``, then the checkpoint's
    ``generation_config.json`` (unless ``--sampling-defaults openai``), then ours.
    """

    def __init__(
        self, config: ServerConfig, info: Mapping[str, Any], eos: Sequence[int], fields: RequestFields | None = None
    ) -> None:
        self.fields = RequestFields() if fields is None else fields
        generation = info["generation"] if config.sampling_defaults == "model" else {}
        usable = [key for key in FROM_CHECKPOINT if key not in self.fields.refused_params]
        own = {key: generation[key] for key in usable if generation.get(key) is not None}
        self.values: dict[str, Any] = {**own, **config.preferred_sampling_params}
        self.eos = tuple(dict.fromkeys((*info["eos_token_ids"], *eos)))
        self.context_length: int = info["context_length"]
        self.vocabulary: int = info["vocab_size"]
        self.longest = min(self.context_length, info["max_total_tokens"])

    def complete(self, fields: Mapping[str, Any], prompt: int, default_new_tokens: int | None) -> Sampling:
        """Return the parameters of a request. Raises ``ApiError`` that names the field that is wrong.

        Args:
            fields: what the request names, by the names of ``sampling_params`` of ``/generate``.
            prompt: number of tokens in the prompt.
            default_new_tokens: maximum number of new tokens of a request that names none; ``None``: as many as fit.
        """
        return self.of_request(fields).for_prompt(prompt, default_new_tokens)

    def of_request(self, fields: Mapping[str, Any]) -> RequestSampling:
        """Return what the parameters of all prompts of a request have in common, ``fields`` as for ``complete``.

        Use it for requests with several prompts. Raises ``ApiError``.
        """
        return RequestSampling(self, fields)

    def outputs(self, fields: Mapping[str, Any]) -> int:
        """Return how many outputs ``fields``, by native names, asks for."""
        return fields.get("n") or self.values.get("n") or 1


class RequestSampling:
    """Sampling parameters that are completed once for all prompts of a request, of which only the lengths differ.

    Args:
        defaults: the defaults and limits of the server.
        fields: what the request names, as for ``SamplingDefaults.complete``.

    Raises ``ApiError`` that names the field that is wrong.
    """

    def __init__(self, defaults: SamplingDefaults, fields: Mapping[str, Any]) -> None:
        self._defaults = defaults
        values = {**defaults.values, **fields}
        self._max_new_tokens = values.get("max_new_tokens")
        self._min_new_tokens = values.get("min_new_tokens")
        self._has_maximum = "max_new_tokens" in values
        self._names_minimum = "min_new_tokens" in fields
        self._names_maximum = fields.get("max_new_tokens") is not None  # the operator's default is cut to what fits
        stop_tokens = tuple(dict.fromkeys(values.get("stop_token_ids") or ()))
        self._check_tokens("stop_token_ids", stop_tokens)
        if not values.get("ignore_eos"):
            stop_tokens = tuple(dict.fromkeys((*stop_tokens, *defaults.eos)))
        seed = values.get("seed")
        if seed is not None and not -INT64 <= seed < INT64:
            raise ApiError("seed must fit 64 bits", param="seed")
        biases = _biases(values.get("logit_bias"))
        self._check_tokens("logit_bias", biases)
        processor_fields = {name: values[name] for name in defaults.fields.owners if values.get(name) is not None}
        self._params: dict[str, Any] = {
            **{name: value for name, value in values.items() if name in ENGINE_FIELDS and value is not None},
            "stop_token_ids": stop_tokens,
            "logit_bias": biases,
            "processor_fields": processor_fields,
        }
        self._text_options: dict[str, Any] = {
            "stops": _stops(values.get("stop")),
            "stop_patterns": _stop_patterns(values.get("stop_regex")),
            "keep_stop": bool(values.get("no_stop_trim")),
            "skip_special": values.get("skip_special_tokens") is not False,
            "n": defaults.outputs(fields),
        }
        self._by_lengths: dict[tuple[int | None, int | None], Sampling] = {}

    def for_prompt(self, prompt: int, default_new_tokens: int | None) -> Sampling:
        """Return the parameters for a prompt of ``prompt`` tokens; prompts with equal limits share one object.

        ``default_new_tokens`` is as for ``SamplingDefaults.complete``. Raises ``ApiError``.
        """
        self._check_prompt(prompt)
        lengths = self._lengths(prompt, default_new_tokens)
        sampling = self._by_lengths.get(lengths)
        if sampling is None:
            is_open = not self._names_maximum and (self._has_maximum or default_new_tokens is None)
            params = self._engine_params(*lengths)
            sampling = self._by_lengths[lengths] = Sampling(params=params, open_length=is_open, **self._text_options)
        return sampling

    def _lengths(self, prompt: int, default_new_tokens: int | None) -> tuple[int, int | None]:
        """Return the maximum and the minimum number of new tokens after a prompt."""
        room = max(0, self._defaults.longest - prompt)
        maximum = self._max_new_tokens if self._has_maximum else default_new_tokens
        if maximum is None:
            maximum = room
        elif self._names_maximum:
            self._check_length(prompt, maximum)
        else:
            maximum = min(maximum, room)
        if self._names_minimum:
            return maximum, self._min_new_tokens
        return maximum, min(self._min_new_tokens or 0, maximum)  # the operator's default concerns longer requests

    def _engine_params(self, max_new_tokens: int, min_new_tokens: int | None) -> SamplingParams:
        lengths = {"max_new_tokens": max_new_tokens, "min_new_tokens": min_new_tokens}
        params = {**self._params, **{name: value for name, value in lengths.items() if value is not None}}
        try:
            completed = SamplingParams(**params)
            self._defaults.fields.check_params(completed)
        except RequestFieldError as error:
            raise ApiError(str(error), param=error.field) from None
        return completed

    def _check_prompt(self, prompt: int) -> None:
        limit = self._defaults.context_length
        if prompt >= limit:
            raise ApiError(
                f"The input ({prompt} tokens) is longer than the model's context length ({limit} tokens).",
                code="context_length_exceeded",
            )

    def _check_tokens(self, field: str, tokens: Collection[int]) -> None:
        size = self._defaults.vocabulary
        if tokens and not 0 <= min(tokens) <= max(tokens) < size:
            raise ApiError(f"a token id in {field} is not in the vocabulary of {size} tokens", param=field)

    def _check_length(self, prompt: int, max_new_tokens: int) -> None:
        limit = self._defaults.context_length
        if prompt < limit < prompt + max_new_tokens:
            raise ApiError(
                f"Requested token count exceeds the model's maximum context length of {limit} tokens. "
                f"You requested a total of {prompt + max_new_tokens} tokens: {prompt} tokens from the input and "
                f"{max_new_tokens} tokens for the completion. Please reduce the number of tokens in the input or the "
                "completion.",
                param="max_tokens",
                code="context_length_exceeded",
            )


def _stops(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MAX_STOPS:
        raise ApiError(f"at most {MAX_STOPS} stop strings are allowed, got {len(stops)}", param="stop")
    for text in stops:
        if not text:
            raise ApiError("stop strings must not be empty", param="stop")
        if len(text) > MAX_STOP_CHARACTERS:
            raise ApiError(f"a stop string has at most {MAX_STOP_CHARACTERS} characters, got {len(text)}", param="stop")
    return stops


def _stop_patterns(stop_regex: str | Sequence[str] | None) -> StopPatterns | None:
    patterns = (stop_regex,) if isinstance(stop_regex, str) else tuple(stop_regex or ())
    if not patterns:
        return None
    if len(patterns) > MAX_STOPS:
        raise ApiError(f"at most {MAX_STOPS} patterns are allowed, got {len(patterns)}", param="stop_regex")
    for pattern in patterns:
        if len(pattern) > MAX_PATTERN_CHARACTERS:
            raise ApiError(
                f"a pattern has at most {MAX_PATTERN_CHARACTERS} characters, got {len(pattern)}", param="stop_regex"
            )
    try:
        return StopPatterns(patterns)
    except ValueError as error:
        raise ApiError(f"stop_regex: {error}", param="stop_regex") from None


def _biases(logit_bias: Mapping[str, float] | None) -> dict[int, float]:
    if not logit_bias:
        return {}
    if len(logit_bias) > MAX_BIASES:
        raise ApiError(f"at most {MAX_BIASES} tokens can be biased, got {len(logit_bias)}", param="logit_bias")
    try:
        biases = {int(token): float(bias) for token, bias in logit_bias.items()}
    except ValueError:
        raise ApiError("logit_bias must map token ids to numbers", param="logit_bias") from None
    return biases
