"""Tools in bodies, and the bodies of the routes that only parse."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from .base import Name, RequestBody

MAX_TOOLS = 1024
FunctionName = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\"\\<>{}]+$")]
"""Formats of calls have no way to quote other characters."""


class _Part(BaseModel):
    """Part of a body; members that other servers know pass."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)


class Function(_Part):
    """A function that the model may call; ``parameters`` is the JSON schema of an object."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
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


ToolChoice = Literal["none", "auto", "required"] | NamedTool
Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS)]


class ParseCallsBody(RequestBody):
    """``POST /parse_function_call``."""

    text: str
    tools: Tools | None = None
    tool_call_parser: Name | None = None


class SeparateReasoningBody(RequestBody):
    """``POST /separate_reasoning``."""

    text: str
    reasoning_parser: Name | None = None
