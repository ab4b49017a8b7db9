"""Tools in request bodies, and the bodies of the routes that only parse outputs."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)

from .base import Many, Name, RequestBody
from .misplaced import SEPARATE_REASONING, Remedies

MAX_TOOLS = 1024
MAX_PARSED_TEXT = 1 << 20
"""Longest text to parse, in characters; outputs are shorter. Text full of calls takes microseconds per call."""
ParsedText = Annotated[str, Field(max_length=MAX_PARSED_TEXT)]
FunctionName = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\"\\<>{}]+$")]
"""Name of a function. Formats of tool calls cannot quote the excluded characters."""


def _check_object_schema(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.get("type", "object") != "object":
        raise ValueError(f"arguments are an object, so the schema's type must be 'object', not {schema['type']!r:.80}")
    return schema


Parameters = Annotated[dict[str, Any], AfterValidator(_check_object_schema)]
"""JSON schema of the arguments of a function."""


class _Part(BaseModel):
    """Part of a body that ignores unknown members."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)


class Function(_Part):
    """A function that the model may call; ``parameters`` is the JSON schema of an object."""

    name: FunctionName
    description: str | None = None
    parameters: Parameters | None = None
    strict: bool | None = None


class Tool(_Part):
    """A tool; there are no others than functions."""

    type: Literal["function"]
    function: Function


class FunctionReference(_Part):
    """A function by name."""

    name: str


class NamedTool(_Part):
    """The function that must be called."""

    type: Literal["function"] = "function"
    function: FunctionReference


class AllowedTools(_Part):
    """Some of the tools, and whether one of them must be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[Many[NamedTool], Field(min_length=1, max_length=MAX_TOOLS)]


class AllowedToolsChoice(_Part):
    """The request is read as if it had no other tools than these."""

    type: Literal["allowed_tools"] = "allowed_tools"
    allowed_tools: AllowedTools


def _form(value: Any) -> str:
    if isinstance(value, str):
        return "Word"
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "Allowed" if kind == "allowed_tools" else "Named"


ChoiceWord = Literal["none", "auto", "required"]
ToolChoice = Annotated[
    Annotated[ChoiceWord, Tag("Word")]
    | Annotated[NamedTool, Tag("Named")]
    | Annotated[AllowedToolsChoice, Tag("Allowed")],
    Discriminator(_form),
]
Tools = Annotated[Many[Tool], Field(max_length=MAX_TOOLS)]


class FlatTool(_Part):
    """A function as ``/v1/responses`` wants it: its name stands next to the type."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: Parameters | None = None
    strict: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_type(cls, value: Any) -> Any:
        kind = value.get("type", "function") if isinstance(value, dict) else "function"
        if kind != "function":
            raise ValueError(f"tools of type {str(kind)[:40]!r} are not supported by this server; declare functions")
        if isinstance(value, dict) and "name" not in value and isinstance(value.get("function"), dict):
            raise ValueError("name, description and parameters belong next to type, not inside function")
        return value

    def nested(self) -> Tool:
        """Return the tool as chat completions write it."""
        return Tool(type="function", function=Function(**self.model_dump(exclude={"type"}, exclude_unset=True)))


class FlatNamedTool(_Part):
    """The function that must be called, as ``/v1/responses`` wants it."""

    type: Literal["function"]
    name: str

    @model_validator(mode="before")
    @classmethod
    def _check_type(cls, value: Any) -> Any:
        kind = value.get("type") if isinstance(value, dict) else "function"
        if kind != "function":
            raise ValueError(f"type {str(kind)[:40]!r} is not supported by this server; name a function")
        return value

    def nested(self) -> NamedTool:
        """Return the choice as chat completions write it."""
        return NamedTool(function=FunctionReference(name=self.name))


class FlatAllowedTools(_Part):
    """The flat form of ``AllowedToolsChoice`` that ``/v1/responses`` takes."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[Many[FlatNamedTool], Field(min_length=1, max_length=MAX_TOOLS)]

    def nested(self) -> AllowedToolsChoice:
        """Return the choice as chat completions write it."""
        return AllowedToolsChoice(
            allowed_tools=AllowedTools(mode=self.mode, tools=[tool.nested() for tool in self.tools])
        )


FlatTools = Annotated[Many[FlatTool], Field(max_length=MAX_TOOLS)]
FlatToolChoice = Annotated[
    Annotated[ChoiceWord, Tag("Word")]
    | Annotated[FlatNamedTool, Tag("Named")]
    | Annotated[FlatAllowedTools, Tag("Allowed")],
    Discriminator(_form),
]


class ParseCallsBody(RequestBody):
    """``POST /parse_function_call``."""

    text: ParsedText
    tools: Tools | None = None
    tool_call_parser: Name | None = None


class SeparateReasoningBody(RequestBody):
    """``POST /separate_reasoning``."""

    misplaced: ClassVar[Remedies] = SEPARATE_REASONING

    text: ParsedText
    reasoning_parser: Name | None = None
