"""Output formats of function calls and reasoning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sglang_plug import ReasoningParserSpec, ToolParserSpec, hookimpl

Target = tuple[str, str]
"""A target in this package, and a summary."""
TOOLS: Mapping[tuple[str, ...], Target] = {
    ("deepseekv3", "deepseek_v3"): ("deepseek:DeepSeek", "DeepSeek V3, R1: <｜tool▁calls▁begin｜> and fenced JSON"),
    ("deepseekv31", "deepseek_v31"): ("deepseek:DeepSeekV31", "DeepSeek V3.1: <｜tool▁calls▁begin｜> and bare JSON"),
    ("deepseekv32", "deepseek_v32"): ("xml.formats:DeepSeekV32", "DeepSeek V3.2: <｜DSML｜function_calls>…"),
    ("deepseekv4", "deepseek_v4"): ("xml.formats:DeepSeekV4", "DeepSeek V4: <｜DSML｜tool_calls>…"),
    ("ernie45",): ("marked_json:Ernie45", "Ernie 4.5, X1: as hermes, with the answer in <response>"),
    ("gemma4",): ("gemma:Gemma4", "Gemma 4: <|tool_call>call:name{key:value, …}"),
    ("glm45", "glm"): ("xml.formats:Glm45", "GLM 4.5, 4.6: <tool_call>name, <arg_key> and <arg_value> on lines"),
    ("glm47",): ("xml.formats:Glm47", "GLM 4.7: as glm45, without line ends"),
    ("gpt-oss", "openai"): ("harmony:HarmonyCalls", "gpt-oss: messages to functions.name"),
    ("granite",): ("marked_json:Granite", "Granite 3: <|tool_call|> and a list"),
    ("hermes", "qwen", "qwen25", "granite4"): (
        "marked_json:Hermes",
        'Hermes, Qwen, Granite 4: <tool_call>{"name": …, "arguments": …}</tool_call>',
    ),
    ("hunyuan", "hy_v3"): ("xml.formats:Hunyuan", "Hunyuan 3: <tool_calls>, <tool_sep>, <arg_key>, <arg_value>"),
    ("hunyuan_a13b",): ("marked_json:HunyuanA13B", "Hunyuan A13B: a list in <tool_calls>"),
    ("interns1", "internlm"): ("marked_json:InternLM", "InternLM, Intern-S1: an object after <|plugin|>"),
    ("kimi_k2",): ("kimi:KimiK2", "Kimi K2: <|tool_call_begin|>functions.name:0…"),
    ("lfm2",): ("pythonic:Lfm2", "LFM2: [name(argument=value), …] after <|tool_call_start|>"),
    ("llama3", "llama3_json", "llama4_json"): (
        "llama3:Llama3",
        'Llama 3: {"name": …, "parameters": …}, after <|python_tag|> or alone',
    ),
    ("minimax-m2", "minimax_m2"): ("xml.formats:MiniMaxM2", 'MiniMax M2: <minimax:tool_call><invoke name="…">…'),
    ("mistral",): ("mistral:Mistral", "Mistral: [TOOL_CALLS] and a list, or name and [ARGS]"),
    ("nemotron_json",): ("marked_json:Nemotron", "Nemotron Nano 2: a list in <TOOLCALL>"),
    ("pythonic", "llama4_pythonic"): ("pythonic:Pythonic", "Llama 4 and others: [name(argument=value), …]"),
    ("qwen3_coder", "qwen3_xml", "step3p5", "nanbeige"): (
        "xml.formats:Qwen3Coder",
        "Qwen3-Coder, Qwen 3.5, Nemotron 3, Step 3.5, Nanbeige: <tool_call><function=…><parameter=…>",
    ),
    ("seed_oss",): ("xml.formats:SeedOss", "Seed-OSS: <seed:tool_call><function=…><parameter=…>"),
    ("step3",): ("xml.formats:Step3", 'Step 3: <｜tool_calls_begin｜>…<steptml:invoke name="…">…'),
}
"""Names of a format -> its parser; the further names are those that other servers use."""
REASONING: Mapping[tuple[str, ...], Target] = {
    ("deepseek-r1", "deepseek_r1", "gigachat35", "minimax", "minimax_m2", "qwen3-thinking", "step3", "step3p5"): (
        "thinking:OpenThinking",
        "the output begins inside <think>",
    ),
    ("ernie45",): ("thinking:ErnieThinking", "as deepseek-r1, with the answer in <response>"),
    ("gemma4",): ("thinking:GemmaThinking", "Gemma 4: <|channel>thought…<channel|>"),
    ("glm45", "glm47", "granite_thinking_parser", "kimi_k2", "nemotron_3", "nemotron_v3"): (
        "thinking:ThinkingBeforeCalls",
        "as qwen3; a call ends the reasoning, too",
    ),
    ("gpt-oss", "openai_gptoss"): ("harmony:HarmonyReasoning", "gpt-oss: the analysis channel"),
    ("granite",): ("thinking:GraniteThinking", "Granite 3: two sentences, or <think>…</think> and <response>"),
    ("hunyuan_a13b",): ("thinking:HunyuanThinking", "as qwen3, with the answer in <answer>"),
    ("kimi",): ("thinking:KimiThinking", "Kimi-VL: ◁think▷…◁/think▷"),
    ("mistral",): ("thinking:MistralThinking", "Magistral: [THINK]…[/THINK]"),
    (
        *("qwen3", "deepseek-v3", "deepseek_v3", "deepseek-v4", "deepseek_v4", "deepseek-v41", "dots", "hunyuan"),
        *("hy_v3", "interns1", "mimo", "nanbeige", "poolside_v1"),
    ): (
        "thinking:Thinking",
        "the output may begin with <think>…</think>",
    ),
    ("seed_oss",): ("thinking:SeedThinking", "Seed-OSS: <seed:think>…</seed:think>"),
}


@hookimpl
def register_output_parsers() -> Iterator[ToolParserSpec | ReasoningParserSpec]:
    for kind, table in ((ToolParserSpec, TOOLS), (ReasoningParserSpec, REASONING)):
        for names, (target, summary) in table.items():
            first, *others = names
            yield kind(name=first, target=f"{__name__}.{target}", summary=summary)
            for name in others:
                same = f"the same as {first}"
                yield kind(name=name, target=f"{__name__}.{target}", summary=same, alias_of=first)
