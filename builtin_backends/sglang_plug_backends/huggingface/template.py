"""Chat templates: render messages to prompt text as transformers does, in a sandbox.

The sandbox bounds neither time nor memory: the server renders in processes that have limits (``template_process``).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from sglang_plug import TemplateError

RESERVED = frozenset({"messages", "tools", "add_generation_prompt"})
"""Names of the request's own parts. Template variables cannot replace these, nor the constants and functions."""
REASONING = ("reasoning_content", "reasoning")
"""Field names of a message's reasoning; templates read the first."""

PROBE = "text of the probe"
PROBED = {"user": ("user",), "system": ("system", "user"), "assistant": ("user", "assistant")}
"""A conversation that probes how a template reads messages of a role; templates refuse others."""

Message = dict[str, Any]


class ChatTemplate:
    """One compiled Jinja template.

    Content that is a list of parts is passed on unchanged if the template can read it, which is determined by trying;
    otherwise its text parts are joined with a space. Text becomes a list of one part if the template reads nothing
    else, as those of some vision-language models.

    Args:
        text: the template.
        constants: what every template may use, e.g. ``bos_token``.

    Raises ``TemplateError`` if the text is not a template.
    """

    def __init__(self, text: str, constants: Mapping[str, Any]) -> None:
        self.constants = dict(constants)
        self._text_as_part: dict[str, bool] = {}
        try:
            environment = _environment()
            self._reserved = RESERVED.union(self.constants, environment.globals)
            self._template = environment.from_string(text)
        except (jinja2.TemplateError, RecursionError, SyntaxError, ValueError, OverflowError) as error:
            raise TemplateError(f"the chat template cannot be compiled: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Render the prompt of ``messages``.

        ``continue_final_message`` leaves the last message open and opens no other.

        Raises ``TemplateError`` if the template refuses the messages, with the template's own words.
        """
        if taken := sorted(self._reserved & set(variables or ())):
            raise TemplateError(f"{taken[0]!r} cannot be set as a chat template variable", "variables")
        prepared = [self._prepare(message) for message in messages]
        mark = ""
        if continue_final_message:
            # The blank shows whether the template trims the content, as in transformers.
            mark = f"[continue {secrets.token_hex(8)}] "
            _append(prepared, mark)
        text = self._render(
            variables or {},
            messages=prepared,
            tools=[dict(tool) for tool in tools] if tools else None,
            add_generation_prompt=add_generation_prompt and not continue_final_message,
        )
        return _cut(text, mark) if mark else text

    @cached_property
    def reads_parts(self) -> bool:
        """Return True if the template writes the text of content that is a list of parts."""
        return self._writes("user", [_part(PROBE)])

    def _needs_text_parts(self, role: str) -> bool:
        """Return True if the template ignores plain text in messages of ``role``, but writes it as a part."""
        if role not in self._text_as_part:
            self._text_as_part[role] = not self._writes(role, PROBE, on_error=True) and self._writes(
                role, [_part(PROBE)]
            )
        return self._text_as_part[role]

    def _writes(self, role: str, content: str | list[dict[str, str]], on_error: bool = False) -> bool:
        messages = [{"role": message_role, "content": content} for message_role in PROBED[role]]
        try:
            text = self._render({}, messages=messages, tools=None, add_generation_prompt=False)
        except TemplateError:
            return on_error
        return text.count(PROBE) >= len(messages) and "'type'" not in text and '"type"' not in text

    def _render(self, variables: Mapping[str, Any], **request: Any) -> str:
        try:
            return self._template.render({"documents": None, **self.constants, **variables, **request})
        except MemoryError:
            raise
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template refuses these messages: {error}") from error
        except Exception as error:  # a template expression failed on the caller's input
            raise TemplateError(
                f"the chat template cannot render these messages: {type(error).__name__}: {error}"
            ) from error

    def _prepare(self, message: Mapping[str, Any]) -> Message:
        """Return a copy of the message in the form that templates expect."""
        prepared = dict(message)
        content = prepared.get("content")
        role = str(prepared.get("role"))
        if content is None:
            prepared["content"] = ""
        elif isinstance(content, str) and content and role in PROBED and self._needs_text_parts(role):
            prepared["content"] = [_part(content)]
        elif isinstance(content, Sequence) and not isinstance(content, str) and not self.reads_parts:
            prepared["content"] = _joined(content)
        if calls := prepared.get("tool_calls"):
            prepared["tool_calls"] = [_with_parsed_arguments(call) for call in calls]
        reasoning = next((prepared[name] for name in REASONING if prepared.get(name) is not None), None)
        if reasoning is not None:
            prepared[REASONING[0]] = reasoning
        return prepared


def _part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _joined(parts: Sequence[Any]) -> str:
    texts = []
    for part in parts:
        text = part if isinstance(part, str) else part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise TemplateError(f"the chat template of this model takes text only, not a content part of type {kind!r}")
        texts.append(text)
    return " ".join(texts)


def _with_parsed_arguments(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Parse a call's arguments, which OpenAI sends as JSON text and templates write as an object."""
    function = call.get("function") if isinstance(call, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(arguments, str):
        return call
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": parsed}}


def _append(messages: list[Message], mark: str) -> None:
    """Append ``mark`` to the last text of the last message."""
    if not messages:
        raise TemplateError("continue_final_message needs a message to continue")
    content = messages[-1]["content"]
    if isinstance(content, str):
        messages[-1]["content"] = content + mark
        return
    parts = list(content)
    for index in reversed(range(len(parts))):
        if isinstance(parts[index], Mapping) and isinstance(parts[index].get("text"), str):
            parts[index] = {**parts[index], "text": parts[index]["text"] + mark}
            messages[-1]["content"] = parts
            return
    raise TemplateError("continue_final_message needs text in the last message")


def _cut(text: str, mark: str) -> str:
    """Return the prompt up to the mark."""
    end = text.rfind(mark)
    if end >= 0:
        return text[:end]
    end = text.rfind(mark.strip())
    if end < 0:
        raise TemplateError("continue_final_message: the chat template does not write the last message")
    return text[:end].rstrip()


class _Generation(jinja2.ext.Extension):
    """The ``{% generation %}`` block, which marks the assistant's text for training and has no effect here."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write plain JSON; Jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
