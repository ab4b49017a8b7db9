"""Tools of a request: checked, and converted for the chat template, the grammar and the parser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_plug import Constraint, ConstraintError, OutputParser
from sglang_plug.contracts.text.grammar import SCHEMA_FIELD
from sglang_plug_api.answers.errors import SHOWN, ApiError
from sglang_plug_api.protocol.tools import AllowedToolsChoice, NamedTool, Tool, ToolChoice
from sglang_plug_api.text.chat_events import ChatParsingOptions
from sglang_plug_api.text.parsers import Parsers


@dataclass(frozen=True, slots=True)
class ToolSetup:
    """The tools of one request, and how it may use them."""

    parsing: ChatParsingOptions
    """Options of the output parser, unless the prompt says that constrained outputs have reasoning, too."""
    template_tools: Sequence[Mapping[str, Any]] | None = None
    """Tools that the chat template puts into the prompt."""
    constraint: Constraint | None = None
    """The constraint that the output must satisfy."""


SCHEMA = "function.parameters"
"""Path of the field of a tool with the schema of the tool's arguments."""
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
"""Arguments of a tool that is not strict, together with strict ones."""


def tool_setup(
    parsers: Parsers,
    tools: Sequence[Tool] | None,
    choice: ToolChoice | None,
    parallel: bool | None,
    *,
    has_format: bool,
    schema_field: str = SCHEMA,
) -> ToolSetup:
    """Check and decide. Raises ``ApiError``.

    Args:
        has_format: the request brings a constraint of its own.
        schema_field: where a tool of the request has the schema of its arguments, for errors.
    """
    fields = {tool.function.name: f"tools[{index}].{schema_field}" for index, tool in enumerate(tools or ())}
    if isinstance(choice, AllowedToolsChoice):
        tools, choice = _allowed(tools or (), choice), choice.allowed_tools.mode
    named = choice.function.name if isinstance(choice, NamedTool) else None
    required = choice == "required" or named is not None
    without_calls = ChatParsingOptions(reasoning=None if has_format else parsers.reasoning)
    if not tools:
        if required:
            choice_text = choice if named is None else "a named tool"
            raise ApiError(f"Tools cannot be empty if tool choice is set to {choice_text}.", param="tool_choice")
        return ToolSetup(without_calls)
    _check_unique(tools)
    chosen = [tool for tool in tools if named in (None, tool.function.name)]
    if not chosen:
        raise _not_found(str(named))
    if choice == "none":
        return ToolSetup(without_calls)
    if required and has_format:
        raise ApiError(
            "tool_choice 'required' or a named tool cannot be combined with a format of the output; remove one of them",
            param="tool_choice",
        )
    if choice == "required":
        _check_definitions(tools)
    parser = parsers.for_tools()
    parallel_calls = named is None and parallel is not False
    constraint = None
    if required or (not has_format and any(tool.function.strict for tool in tools)):
        constraint = _structure(parser, chosen, fields, required=required, parallel=parallel_calls)
    template_tools = [tool.model_dump(exclude_unset=True) for tool in tools]
    functions = {tool.function.name: tool.function.parameters or {} for tool in tools}
    reasoning = None if constraint is not None or has_format else parsers.reasoning
    parsing = ChatParsingOptions(tools=parser, functions=functions, reasoning=reasoning, parallel=parallel_calls)
    return ToolSetup(parsing, template_tools, constraint)


def _allowed(tools: Sequence[Tool], choice: AllowedToolsChoice) -> list[Tool]:
    """Return the tools that ``choice`` allows. Raises ``ApiError`` if it names one that is not there."""
    names = [tool.function.name for tool in choice.allowed_tools.tools]
    known = {tool.function.name for tool in tools}
    for name in names:
        if name not in known:
            raise _not_found(name)
    return [tool for tool in tools if tool.function.name in names]


def _not_found(name: str) -> ApiError:
    return ApiError(f"Tool {name[:SHOWN]!r} not found in tools list.", param="tool_choice")


def _check_unique(tools: Sequence[Tool]) -> None:
    names = set[str]()
    for index, tool in enumerate(tools):
        name = tool.function.name
        if name in names:
            raise ApiError(f"two tools are called {name[:SHOWN]!r}", param=f"tools.{index}.function.name")
        names.add(name)


def _check_definitions(tools: Sequence[Tool]) -> None:
    """Raise ``ApiError`` if one name stands for different definitions in tools of which any may be called."""
    known: dict[str, tuple[str, Any]] = {}
    for index, tool in enumerate(tools):
        definitions = (tool.function.parameters or {}).get("$defs")
        for name, definition in definitions.items() if isinstance(definitions, dict) else ():
            first, other = known.setdefault(name, (tool.function.name, definition))
            if other != definition:
                raise ApiError(
                    f"$defs: {name[:SHOWN]!r} has one schema in {first[:SHOWN]!r} and another in "
                    f"{tool.function.name[:SHOWN]!r}; rename one of them",
                    param=f"tools.{index}.function.parameters",
                )


def _structure(
    parser: type[OutputParser], tools: Sequence[Tool], fields: Mapping[str, str], *, required: bool, parallel: bool
) -> Constraint:
    """Return the structural tag that calls must follow; ``fields`` names where the request has the schema of each."""
    functions = {
        tool.function.name: _schema(tool, fields[tool.function.name])
        if required or tool.function.strict
        else ANY_OBJECT
        for tool in tools
    }
    try:
        structure = parser.structure(functions, required=required, parallel=parallel)
    except ConstraintError as error:
        raise ApiError(str(error), param="tools") from None
    if structure is None:
        feature, param = ("a required tool call", "tool_choice") if required else ("strict tools", "tools")
        raise ApiError(f"{feature} cannot be enforced in the format that this model writes calls in", param=param)
    return structure


def _schema(tool: Tool, field: str) -> Mapping[str, Any]:
    """Return the schema of the arguments, an object; a function that declares no parameters takes none."""
    if tool.function.parameters is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    keywords = {key: value for key, value in tool.function.parameters.items() if key != "nullable"}
    return {"type": "object", **keywords, SCHEMA_FIELD: field}
