"""The ChatML form of the demo model: special tokens, the Jinja template, and the same rendering in Python."""

from __future__ import annotations

import json
from typing import Any

Message = dict[str, Any]

BOS, EOT, IM_START, IM_END, PAD = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|pad|>",
)
SPECIAL_TOKENS: list[str] = [PAD, BOS, EOT, IM_START, IM_END, "<|tool_call|>", "<|image|>", "<|audio|>"]
SPECIAL_TOKENS += [f"<|reserved_{i}|>" for i in range(8)]
# Added but not special, so that a decoder which skips special tokens keeps them for the parsers.
MARKER_TOKENS: list[str] = [
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<tools>",
    "</tools>",
    "<think>",
    "</think>",
]

TOOLS_HEAD = "# Tools\n\nYou may call these functions:\n<tools>"
TOOLS_TAIL = (
    '\n</tools>\n\nTo call a function, reply with:\n<tool_call>\n{"name": <function-name>, "arguments": '
    "<args-json-object>}\n</tool_call>"
)

CHAT_TEMPLATE = """\
{%- macro text(content) -%}
  {%- if content is string -%}{{- content -}}
  {%- elif content is iterable and content is not mapping -%}
    {%- for part in content -%}
      {%- if part is string -%}{{- part -}}
      {%- elif part.text is defined and part.text is string -%}{{- part.text -}}{%- endif -%}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- set first_system = messages and messages[0].role in ['system', 'developer'] -%}
{%- if tools -%}
  {{- '<|im_start|>system\\n' -}}
  {%- if first_system -%}{{- text(messages[0].content) + '\\n\\n' -}}{%- endif -%}
  {{- @HEAD@ -}}
  {%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}
  {{- @TAIL@ + '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
  {%- if message.role in ['system', 'developer'] -%}
    {%- if not (tools and loop.first) -%}
      {{- '<|im_start|>system\\n' + text(message.content) + '<|im_end|>\\n' -}}
    {%- endif -%}
  {%- elif message.role == 'assistant' -%}
    {{- '<|im_start|>assistant\\n' + text(message.content) -}}
    {%- for call in (message.tool_calls or []) -%}
      {%- set function = call.function if call.function is defined else call -%}
      {%- if not loop.first or text(message.content) -%}{{- '\\n' -}}{%- endif -%}
      {{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' -}}
      {%- if function.arguments is string -%}{{- function.arguments -}}
      {%- else -%}{{- function.arguments | tojson -}}{%- endif -%}
      {{- '}\\n</tool_call>' -}}
    {%- endfor -%}
    {{- '<|im_end|>\\n' -}}
  {%- elif message.role in ['tool', 'function'] -%}
    {%- if loop.first or messages[loop.index0 - 1].role not in ['tool', 'function'] -%}
      {{- '<|im_start|>user' -}}
    {%- endif -%}
    {{- '\\n<tool_response>\\n' + text(message.content) + '\\n</tool_response>' -}}
    {%- if loop.last or messages[loop.index0 + 1].role not in ['tool', 'function'] -%}
      {{- '<|im_end|>\\n' -}}
    {%- endif -%}
  {%- else -%}
    {{- '<|im_start|>' + message.role + '\\n' + text(message.content) + '<|im_end|>\\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def _jinja_string(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("\n", "\\n").replace("'", "\\'") + "'"


def chat_template() -> str:
    """The Jinja chat template of the checkpoint."""
    return CHAT_TEMPLATE.replace("@HEAD@", _jinja_string(TOOLS_HEAD)).replace("@TAIL@", _jinja_string(TOOLS_TAIL))


def dump(value: Any) -> str:
    """JSON text as the template's tojson filter writes it."""
    return json.dumps(value, ensure_ascii=False)


def tool_call_text(name: str, arguments: dict[str, Any]) -> str:
    """One tool call as the assistant writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {dump(arguments)}}}\n</tool_call>'


def render(messages: list[Message], tools: list[dict[str, Any]] | None = None, generation_prompt: bool = False) -> str:
    """Messages as text, exactly as the Jinja template gives it."""
    out: list[str] = []
    if tools:
        head = ""
        if messages and messages[0]["role"] == "system":
            head = messages[0]["content"] + "\n\n"
        listed = "".join("\n" + dump(tool) for tool in tools)
        out.append(f"{IM_START}system\n{head}{TOOLS_HEAD}{listed}{TOOLS_TAIL}{IM_END}\n")
    for index, message in enumerate(messages):
        role, content = message["role"], message.get("content") or ""
        if role == "system" and tools and index == 0:
            continue
        if role == "tool":
            before = index > 0 and messages[index - 1]["role"] == "tool"
            after = index + 1 < len(messages) and messages[index + 1]["role"] == "tool"
            out.append(
                ("" if before else f"{IM_START}user")
                + f"\n<tool_response>\n{content}\n</tool_response>"
                + ("" if after else f"{IM_END}\n")
            )
            continue
        calls = [
            tool_call_text(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", [])
        ]
        body = "\n".join(([content] if content else []) + calls)
        out.append(f"{IM_START}{role}\n{body}{IM_END}\n")
    if generation_prompt:
        out.append(f"{IM_START}assistant\n")
    return "".join(out)
