"""Tools of requests, and which of them the model has to call."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from sglang_plug_api.plugin import Function, FunctionReference, NamedTool, RequestBody, Tool

from .blocks import MOST_SHOWN


class AnthropicTool(RequestBody):
    """A tool that the caller runs. What a tool's name may be, the model's format of calls says."""

    type: Literal["custom"] | None = None
    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_the_caller_s(cls, value: Any) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        if isinstance(kind, str) and kind != "custom":
            raise ValueError(
                f"tools of type {kind[:MOST_SHOWN]!r} are not known here; declare one with name and input_schema"
            )
        return value

    @model_validator(mode="after")
    def _is_a_function(self) -> AnthropicTool:
        self.function()
        return self

    def function(self) -> Tool:
        """As the server knows tools. Raises ``ValidationError`` for names that no format of calls can quote."""
        given = {"name": self.name, "description": self.description, "strict": self.strict}
        known = {name: value for name, value in given.items() if value is not None}
        return Tool(type="function", function=Function.model_validate({**known, "parameters": self.input_schema}))


class AnthropicToolChoice(RequestBody):
    """Whether tools may, must or must not be called, and how many in one answer."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _names_its_tool(self) -> AnthropicToolChoice:
        if self.type == "tool" and self.name is None:
            raise ValueError("a choice of type 'tool' has a field 'name'")
        return self

    def choice(self) -> Literal["auto", "required", "none"] | NamedTool:
        """As the server knows choices."""
        match self.type:
            case "auto" | "none":
                return self.type
            case "any":
                return "required"
            case "tool":
                return NamedTool(function=FunctionReference(name=self.name or ""))
