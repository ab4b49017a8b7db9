"""Chat templates: messages to prompt text, as transformers renders them, in a sandbox."""

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

RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now"})
"""Names that a request's own template variables may not take."""
REASONING = ("reasoning_content", "reasoning")
"""Names under which a message's reasoning is sent; templates read the first."""

PROBE = "text of the probe"
PROBED = {"user": ("user",), "system": ("system", "user"), "assistant": ("user", "assistant")}
"""A conversation that shows how a template reads messages of a role; templates refuse others."""

Message = dict[str, Any]


class ChatTemplate:
    """One compiled Jinja template.

    Content that comes as a list of parts is handed to the template as it is if the template can read it, which
    is found out by trying; otherwise its text parts are joined with a space. Text becomes a list of one part where the
    template reads nothing else, as those of some models that see.

    Args:
        text: the template.
        constants: what every template may use, e.g. ``bos_token``.

    Raises ``TemplateError`` if the text is not a template.
    """

    def __init__(self, text: str, constants: Mapping[str, Any]) -> None:
        self.constants = dict(constants)
        self._text_as_part: dict[str, bool] = {}
        try:
            self._template = _environment().from_string(text)
        except (jinja2.TemplateError, RecursionError) as error:
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
        """The prompt of ``messages``. ``continue_final_message`` leaves the last message open and opens no other.

        Raises ``TemplateError`` if the template refuses the messages, with the template's own words.
        """
        if taken := sorted(RESERVED & set(variables or ())):
            raise TemplateError(f"{taken[0]!r} cannot be set as a chat template variable")
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
        """True if the template writes the text of content that is a list of parts."""
        return self._writes("user", [_part(PROBE)])

    def _wants_text_as_part(self, role: str) -> bool:
        """True if the template would write nothing of text in messages of ``role``, but writes it as a part."""
        if role not in self._text_as_part:
            self._text_as_part[role] = not self._writes(role, PROBE, on_error=True) and self._writes(
                role, [_part(PROBE)]
            )
        return self._text_as_part[role]

    def _writes(self, role: str, content: str | list[dict[str, str]], on_error: bool = False) -> bool:
        messages = [{"role": one, "content": content} for one in PROBED[role]]
        try:
            text = self._render({}, messages=messages, tools=None, add_generation_prompt=False)
        except TemplateError:
            return on_error
        return text.count(PROBE) >= len(messages) and "'type'" not in text and '"type"' not in text

    def _render(self, variables: Mapping[str, Any], **request: Any) -> str:
        try:
            return self._template.render({"documents": None, **self.constants, **variables, **request})
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template refuses these messages: {error}") from error
        except Exception as error:  # an expression of the template failed on what the caller sent
            raise TemplateError(
                f"the chat template cannot render these messages: {type(error).__name__}: {error}"
            ) from error

    def _prepare(self, message: Mapping[str, Any]) -> Message:
        """The message as templates expect it; nothing of the caller's is changed."""
        made = dict(message)
        content = made.get("content")
        role = str(made.get("role"))
        if content is None:
            made["content"] = ""
        elif isinstance(content, str) and content and role in PROBED and self._wants_text_as_part(role):
            made["content"] = [_part(content)]
        elif isinstance(content, Sequence) and not isinstance(content, str) and not self.reads_parts:
            made["content"] = _joined(content)
        if calls := made.get("tool_calls"):
            made["tool_calls"] = [_with_parsed_arguments(call) for call in calls]
        reasoning = next((made[name] for name in REASONING if made.get(name) is not None), None)
        if reasoning is not None:
            made[REASONING[0]] = reasoning
        return made


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
    """OpenAI sends a call's arguments as JSON text; templates write them as an object."""
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
    """Write ``mark`` behind the last text of the last message."""
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
    """The prompt up to the mark."""
    end = text.rfind(mark)
    if end >= 0:
        return text[:end]
    end = text.rfind(mark.strip())
    if end < 0:
        raise TemplateError("continue_final_message: the chat template does not write the last message")
    return text[:end].rstrip()


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks the assistant's words for training; here it only stands around them."""

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
    """Plain JSON; Jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
