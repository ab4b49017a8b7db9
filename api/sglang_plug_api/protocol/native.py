"""Bodies of the native routes."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from sglang_plug_api.answers.errors import SHOWN, WrongField

from .base import (
    MAX_PROMPTS,
    Integer,
    Many,
    Name,
    SchedulingFields,
    Texts,
    TokenId,
    TokenLists,
    Tokens,
    request_fields_of,
)
from .misplaced import ENCODE, NATIVE, SAMPLING_PARAMS, Remedies, is_requested
from .sampling import ConstraintFields, SamplingFields

MAX_TOP_LOGPROBS = 1024
MAX_LOGPROB_IDS = 16384

LogprobIds = Annotated[Many[TokenId], Field(max_length=MAX_LOGPROB_IDS)]


State = Annotated[Many[Annotated[float, Field(strict=True)]], Field(min_length=1)]
States = Annotated[Many[State], Field(min_length=1)]
"""Input embeddings of one prompt, one vector for each token."""
BATCH_DEPTH = 3


def _depth(value: Any) -> int:
    return 1 + _depth(value[0] if value else None) if isinstance(value, list) else 0


StatesPrompts = Annotated[
    Annotated[States, Tag("States")] | Annotated[Annotated[Many[States], Field(min_length=1)], Tag("Batch")],
    Discriminator(lambda value: "Batch" if _depth(value) >= BATCH_DEPTH else "States"),
]


class SamplingBody(SamplingFields, ConstraintFields):
    """``sampling_params``."""

    misplaced: ClassVar[Remedies] = SAMPLING_PARAMS

    n: Integer | None = Field(None, ge=1)
    max_new_tokens: Integer | None = Field(None, ge=0)
    min_new_tokens: Integer | None = None
    spaces_between_special_tokens: bool | None = None
    sampling_seed: Integer | None = None
    json_schema: str | dict[str, Any] | None = None
    structural_tag: str | dict[str, Any] | None = None
    custom_params: dict[str, Any] | None = None
    stream_interval: Integer | None = None
    """Without effect: text is sent as it comes."""

    @model_validator(mode="after")
    def _refuse_unknown(self) -> SamplingBody:
        """Elsewhere unknown fields pass; here nothing but parameters can be meant."""
        for name, value in (self.model_extra or {}).items():
            if is_requested(value) and name not in self.misplaced and name not in self.processor_fields:
                raise WrongField(name[:SHOWN], f"there is no sampling parameter {name[:SHOWN]!r}")
        return self


class PromptsBody(SchedulingFields):
    """One prompt or a batch of them, as text or as token ids."""

    cache_salt: Name | Many[Name | None] | None = None
    """Separates prefixes in the cache, for all prompts or for each."""
    extra_key: Name | Many[Name | None] | None = None
    text: str | Texts | None = None
    input_ids: Tokens | TokenLists | None = None
    input_embeds: Any = None
    image_data: Any = None
    audio_data: Any = None
    video_data: Any = None
    rid: Name | Many[Name] | None = None
    lora_path: Name | Many[Name | None] | None = None
    """An adapter's name, for all prompts or for each."""

    @model_validator(mode="after")
    def _one_input(self) -> PromptsBody:
        if sum(field is not None for field in (self.text, self.input_ids, self.input_embeds)) != 1:
            raise WrongField("text", "Either text, input_ids or input_embeds should be provided.")
        if self.input_ids is not None and (not self.input_ids or [] in self.input_ids):
            raise WrongField("input_ids", "input_ids cannot be empty.")
        if self.text is not None and (not self.text or "" in self._texts()):
            raise WrongField("text", "text cannot be empty.")
        if self.is_batch and self.size > MAX_PROMPTS:
            raise ValueError(f"at most {MAX_PROMPTS} prompts are allowed, got {self.size}")
        return self

    def _texts(self) -> list[str]:
        return self.text if isinstance(self.text, list) else [self.text or ""]

    @property
    def is_batch(self) -> bool:
        """True if the answer is a list."""
        if self.text is not None:
            return isinstance(self.text, list)
        if self.input_embeds is not None:
            return _depth(self.input_embeds) == BATCH_DEPTH
        return isinstance((self.input_ids or [0])[0], list)

    @property
    def size(self) -> int:
        """Number of prompts."""
        return len(self.inputs()) if self.is_batch else 1

    def inputs(self) -> list[Any]:
        """One entry for each prompt: a text, token ids, or states."""
        inputs = (self.text, self.input_ids, self.input_embeds)
        batch: Any = next(value for value in inputs if value is not None)
        return batch if self.is_batch else [batch]


class GenerateBody(PromptsBody):
    """``POST /generate``: one prompt, or a batch of them with every other field a value or a list of as many."""

    misplaced: ClassVar[Remedies] = NATIVE
    _processor_remedy: ClassVar[str] = "it belongs in sampling_params"

    input_embeds: StatesPrompts | None = None
    """Inputs of the model's first layer instead of tokens: a list of states, or one for each prompt."""
    sampling_params: SamplingBody | Many[SamplingBody] | None = None
    stream: bool = False
    incremental: bool = False
    """Each event has only the new text; by default it has all of it so far."""
    return_logprob: bool | Many[bool] | None = None
    logprob_start_len: Integer | Many[Integer] | None = None
    top_logprobs_num: Integer | Many[Integer] | None = None
    token_ids_logprob: LogprobIds | Annotated[Many[LogprobIds], Field(max_length=MAX_PROMPTS)] | None = None
    return_text_in_logprobs: bool = False
    return_hidden_states: bool | None = None
    return_prompt_token_ids: bool | None = None
    """The tokens of the prompt, in ``meta_info``."""

    @model_validator(mode="after")
    def _processor_fields_belong_inside(self, info: ValidationInfo) -> GenerateBody:
        """Fields of logits processors are parameters; here they would have no effect."""
        names = request_fields_of(info).names
        for name, value in (self.model_extra or {}).items():
            if name in names and is_requested(value):
                raise WrongField(name, f"{name!r} would have no effect here: {self._processor_remedy}")
        return self

    @field_validator("top_logprobs_num")
    @classmethod
    def _bounded(cls, value: int | list[int] | None) -> int | list[int] | None:
        for count in value if isinstance(value, list) else (value,):
            if count is not None and not 0 <= count <= MAX_TOP_LOGPROBS:
                raise ValueError(f"must be between 0 and {MAX_TOP_LOGPROBS}")
        return value

    def each(self, name: str) -> list[Any]:
        """A field's value for each prompt. Raises ``WrongField`` if a list has another length."""
        value = getattr(self, name)
        nested = name == "token_ids_logprob"
        if nested and not self.is_batch and value and isinstance(value[0], list):
            raise WrongField(name, f"{name} is a list of lists, but there is one prompt; send a list of token ids")
        listed = isinstance(value, list) and (not nested or (bool(value) and isinstance(value[0], list)))
        if not listed:
            return [value] * self.size
        if len(value) != self.size:
            raise WrongField(name, f"{name} has {len(value)} entries for {self.size} prompts")
        return list(value)


class PoolBody(PromptsBody):
    """``POST /encode`` and ``POST /classify``."""

    misplaced: ClassVar[Remedies] = ENCODE

    model: Name | None = None
    dimensions: Integer | None = Field(None, ge=1)
