"""Output formats of function calls and reasoning."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ReasoningParserSpec, ToolParserSpec, hookimpl


@hookimpl
def register_output_parsers() -> Iterator[ToolParserSpec | ReasoningParserSpec]:
    tools = {
        "hermes": ("tagged:Tagged", 'Hermes, Qwen: <tool_call>{"name": …, "arguments": …}</tool_call>'),
        "qwen25": ("tagged:Tagged", "the same as hermes"),
        "llama3": ("llama3:Llama3", 'Llama 3: {"name": …, "parameters": …}, after <|python_tag|> or alone'),
        "mistral": ("mistral:Mistral", "Mistral: [TOOL_CALLS] and a list, or name and [ARGS]"),
        "deepseekv3": ("deepseek:DeepSeek", "DeepSeek V3, R1 and V3.1: <｜tool▁calls▁begin｜>…"),
        "pythonic": ("pythonic:Pythonic", "Llama 4 and others: [name(argument=value), …]"),
        "gpt-oss": ("harmony:HarmonyCalls", "gpt-oss: messages to functions.name"),
    }
    for name, (target, summary) in tools.items():
        yield ToolParserSpec(name=name, target=f"{__name__}.{target}", summary=summary)
    reasoning = {
        "deepseek-r1": ("thinking:OpenThinking", "the output begins inside <think>"),
        "qwen3": ("thinking:Thinking", "the output may begin with <think>…</think>"),
        "gpt-oss": ("harmony:HarmonyReasoning", "gpt-oss: the analysis channel"),
    }
    for name, (target, summary) in reasoning.items():
        yield ReasoningParserSpec(name=name, target=f"{__name__}.{target}", summary=summary)
