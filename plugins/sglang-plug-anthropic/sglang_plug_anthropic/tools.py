"""Tools of requests, and the choice among them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from sglang_plug_api.plugin import Function, FunctionReference, NamedTool, RequestBody, Tool

from .blocks import MAX_SHOWN


class AnthropicTool(RequestBody):
    """A tool that the caller runs. The model's call format restricts its name."""

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
                f"tools of type {kind[:MAX_SHOWN]!r} are not known here; declare one with name and input_schema"
            )
        return value

    @model_validator(mode="after")
    def _is_a_function(self) -> AnthropicTool:
        self.function()
        return self

    def function(self) -> Tool:
        """Convert to the server's tool. Raises ``ValidationError`` for names that no call format can represent."""
        function = {"name": self.name, "description": self.description, "strict": self.strict}
        known = {name: value for name, value in function.items() if value is not None}
        return Tool(type="function", function=Function.model_validate({**known, "parameters": self.input_schema}))


class AnthropicToolChoice(RequestBody):
    """Choice whether tools may, must or must not be called, and how many in one answer."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _names_its_tool(self) -> AnthropicToolChoice:
        if self.type == "tool" and self.name is None:
            raise ValueError("a choice of type 'tool' has a field 'name'")
        return self

    def choice(self) -> Literal["auto", "required", "none"] | NamedTool:
        """Convert to the server's tool choice."""
        match self.type:
            case "auto" | "none":
                return self.type
            case "any":
                return "required"
            case "tool":
                return NamedTool(function=FunctionReference(name=self.name or ""))
