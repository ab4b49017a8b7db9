"""The base of all request bodies: strict numbers, and fields without effect that are refused by name."""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    ValidationInfo,
    model_validator,
)

from sglang_plug.contracts.sampling_params import RequestFieldError
from sglang_plug.plugins.request_fields import RequestFields
from sglang_plug_api.answers.errors import ApiError, WrongField

from .misplaced import PLAIN, Remedies, check

MAX_NAME = 256
SHOWN = 40
"""Maximum number of characters of a type, or of an id of a call, that an error repeats."""
MAX_TOKENS_IN_LIST = 1 << 22
MAX_PROMPTS = 65536
INT64 = 1 << 63
MAX_DEADLINE_MS = 1 << 53

NOT_YET = "is not supported by this server"


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


Number = Annotated[float, BeforeValidator(_no_bool)]
Integer = Annotated[int, Field(ge=-INT64, lt=INT64), BeforeValidator(_no_bool)]
DeadlineMs = Annotated[Integer | None, Field(ge=1, le=MAX_DEADLINE_MS)]
"""Milliseconds from the arrival of a request in which its output should be complete."""
TokenId = Annotated[int, Field(strict=True, ge=0, lt=INT64)]
Name = Annotated[str, Field(max_length=MAX_NAME)]
TruncatedLength = Annotated[Integer, Field(ge=-1)]
"""Maximum number of tokens of a prompt, which is cut if it has more; -1: as many as fit the model."""
Side = Literal["left", "right"]
"""The side of a prompt that is cut."""

Entry = TypeVar("Entry")
Many = Annotated[list[Entry], Field(fail_fast=True)]
"""A list that is read until its first wrong entry: millions of them would cost more than right ones."""
Tokens = Annotated[Many[TokenId], Field(max_length=MAX_TOKENS_IN_LIST)]
Texts = Annotated[Many[str], Field(max_length=MAX_PROMPTS)]
TokenLists = Annotated[Many[Tokens], Field(max_length=MAX_PROMPTS)]


def _form(value: Any) -> str | None:
    if isinstance(value, str):
        return "Text"
    if not isinstance(value, list):
        return None
    first = value[0] if value else ""
    if isinstance(first, dict):  # a part of a multimodal input
        return None
    return "TokenLists" if isinstance(first, list) else "Texts" if isinstance(first, str) else "Tokens"


Prompts = Annotated[
    Annotated[str, Tag("Text")]
    | Annotated[Texts, Tag("Texts")]
    | Annotated[Tokens, Tag("Tokens")]
    | Annotated[TokenLists, Tag("TokenLists")],
    Discriminator(
        _form,
        custom_error_type="prompts",
        custom_error_message="must be a text, a list of texts, a list of token ids, or a list of such lists",
    ),
]
"""Told apart by their first entry, so that an error names what is wrong with the form that was sent."""


class RequestBody(BaseModel):
    """A JSON object; unknown fields pass unless they are known to mean something elsewhere."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False, protected_namespaces=())

    misplaced: ClassVar[Remedies] = PLAIN

    _processor_remedy: ClassVar[str] = "it is a parameter of requests that generate text"
    """Remedy for a field of a logits processor of this server, in bodies that do not take such fields."""

    @model_validator(mode="after")
    def _refuse_misplaced(self, info: ValidationInfo) -> RequestBody:
        if self.model_extra:
            names = self.misplaced.keys() & request_fields_of(info).names
            check(self.model_extra, {**self.misplaced, **dict.fromkeys(names, self._processor_remedy)})
        return self


def validation_context(fields: RequestFields) -> dict[str, RequestFields]:
    """Return the validation context that tells bodies the request fields of plugins."""
    return {"request_fields": fields}


def request_fields_of(info: ValidationInfo) -> RequestFields:
    """Return the request fields of the validation context; none without one."""
    return (info.context or {}).get("request_fields") or RequestFields()


class ProcessorFieldsBody(RequestBody):
    """A body that takes the request fields of plugins, whatever these are on this server."""

    _processor_fields: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _refuse_misplaced(self, info: ValidationInfo) -> ProcessorFieldsBody:
        extra = self.model_extra or {}
        if extra:
            fields = request_fields_of(info)
            try:
                self._processor_fields = fields.check(extra)
            except RequestFieldError as error:
                raise WrongField(error.field, str(error)) from None
            check({name: value for name, value in extra.items() if name not in fields.names}, self.misplaced)
        return self

    @property
    def processor_fields(self) -> dict[str, Any]:
        """The fields of plugins that the request gave, validated, as plain data."""
        return self._processor_fields


class SchedulingFields(RequestBody):
    """Fields of every request: its priority, its deadline and its caller."""

    priority: Integer | None = None
    deadline_ms: DeadlineMs = None
    user: str | None = None


class SharedFields(SchedulingFields):
    """Fields of every request with one salt in the prefix cache."""

    cache_salt: Name | None = None
    extra_key: Name | None = None

    @property
    def salt(self) -> str:
        """The salt that separates this request's prefixes from others'."""
        return combined_salt(self.cache_salt, self.extra_key)


def combined_salt(cache_salt: str | None, extra_key: str | None) -> str:
    """Return the salt of the prefix cache for two fields of a request, each of which separates prefixes."""
    if cache_salt and extra_key:
        return json.dumps([cache_salt, extra_key])
    return cache_salt or extra_key or ""


def one_each(body: RequestBody, field: str, prompts: int) -> list[str | None]:
    """Return the value of ``field``, a name or a list of them, for each of ``prompts``. Raises ``ApiError``."""
    value: str | list[str | None] | None = getattr(body, field)
    names = value if isinstance(value, list) else [value] * prompts
    if len(names) != prompts:
        raise ApiError(f"{field} has {len(names)} entries for {prompts} prompts", param=field)
    return names


def salts_of_prompts(body: RequestBody, prompts: int) -> list[str]:
    """Return the salt in the prefix cache of each of ``prompts``. Raises ``ApiError``."""
    salts, keys = one_each(body, "cache_salt", prompts), one_each(body, "extra_key", prompts)
    return [combined_salt(salt, key) for salt, key in zip(salts, keys, strict=True)]


def refuse(body: RequestBody, *names: str, remedy: str = "") -> None:
    """Refuse fields that this server cannot honour yet, if they are set to anything. Raises ``ApiError``."""
    for name in names:
        if getattr(body, name) not in (None, False, [], {}, ""):
            raise ApiError(f"{name} {NOT_YET}" + (f"; {remedy}" if remedy else ""), param=name)
