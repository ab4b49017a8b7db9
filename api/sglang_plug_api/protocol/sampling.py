"""Sampling parameters and constraints: the fields that all generation routes share."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from sglang_plug_api.answers.errors import ApiError, WrongField

from .base import Integer, Many, Name, Number, ProcessorFieldsBody, RequestBody, Tokens
from .misplaced import Remedies

SAMPLING: Mapping[str, str] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "repetition_penalty": "repetition_penalty",
    "logit_bias": "logit_bias",
    "sampling_seed": "seed",
    "seed": "seed",
    "n": "n",
    "stop": "stop",
    "stop_regex": "stop_regex",
    "stop_token_ids": "stop_token_ids",
    "ignore_eos": "ignore_eos",
    "skip_special_tokens": "skip_special_tokens",
    "no_stop_trim": "no_stop_trim",
    "include_stop_str_in_output": "no_stop_trim",
    "min_tokens": "min_new_tokens",
    "min_new_tokens": "min_new_tokens",
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "max_output_tokens": "max_new_tokens",
    "max_new_tokens": "max_new_tokens",
}
"""Field of a body -> native name. Of the given fields with one meaning the last in this table counts."""


MAX_CHOICES = 1024
STRUCTURES = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
"""Fields of ``StructuredOutputs`` of which a request has one."""


class StructuredOutputs(RequestBody):
    """A constraint as clients of vLLM write it. Exactly one of the fields is set."""

    misplaced: ClassVar[Remedies] = {
        "disable_any_whitespace": "whitespace is bounded by the server",
        "whitespace_pattern": "whitespace is bounded by the server",
        "disable_additional_properties": "write additionalProperties into the schema",
    }

    json_: str | dict[str, Any] | None = Field(None, alias="json")
    regex: str | None = None
    choice: Annotated[Many[str], Field(min_length=1, max_length=MAX_CHOICES)] | None = None
    """The output is one of these texts."""
    grammar: str | None = None
    """EBNF."""
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one_structure(self) -> StructuredOutputs:
        kinds = self.kinds()
        if len(kinds) != 1:
            present = f"; this has {', '.join(kinds)}" if kinds else ""
            raise ValueError(f"needs exactly one of {', '.join(STRUCTURES)}{present}")
        if "" in (self.choice or ()):
            raise WrongField("choice", "a choice must not be empty")
        return self

    def kinds(self) -> list[str]:
        """Return the names of the given structures."""
        values = (self.json_, self.regex, self.choice, self.grammar, self.json_object or None, self.structural_tag)
        return [name for name, value in zip(STRUCTURES, values, strict=True) if value is not None]


class ConstraintFields(RequestBody):
    """Constraints on the output, for routes that take them outside of a ``response_format``."""

    regex: str | None = None
    ebnf: str | None = None
    grammar_backend: Name | None = None


class SamplingFields(ProcessorFieldsBody):
    """Sampling parameters and stop conditions."""

    temperature: Number | None = Field(None, ge=0)
    top_p: Number | None = None
    top_k: Integer | None = None
    min_p: Number | None = None
    frequency_penalty: Number | None = None
    presence_penalty: Number | None = None
    repetition_penalty: Number | None = None
    logit_bias: dict[str, Annotated[float, Field(strict=True)]] | None = None
    seed: Integer | None = None
    stop: str | Many[str] | None = None
    stop_regex: str | Many[str] | None = None
    stop_token_ids: Tokens | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: bool | None = None

    def sampling(self) -> dict[str, Any]:
        """Return the given parameters by their native names; fields of logits processors are separate."""
        known = type(self).model_fields
        params = ((native, getattr(self, name)) for name, native in SAMPLING.items() if name in known)
        return {**{native: value for native, value in params if value is not None}, **self.processor_fields}

    def names(self) -> dict[str, str]:
        """Map the native names of parameters to this body's: to the one that the client gave, if there are several."""
        known = type(self).model_fields
        names = {native: native for native in SAMPLING.values() if native in known}
        for name, native in SAMPLING.items():
            if name in known and (getattr(self, name) is not None or native not in names):
                names[native] = name
        return names


@contextlib.contextmanager
def renamed_params(names: Mapping[str, str]) -> Iterator[None]:
    """Let an ``ApiError`` about a parameter name it, and others in its message, as the client does.

    ``names`` maps native names to those of the client, as ``SamplingFields.names`` returns them.
    """
    names = {**names, "max_tokens": names["max_new_tokens"]}  # OpenAI's name, in errors about the context length
    try:
        yield
    except ApiError as error:
        if error.param not in names:
            raise
        message = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), error.message)
        renamed = ApiError(message, error.status, param=names[error.param], code=error.code, headers=error.headers)
        raise renamed from None
