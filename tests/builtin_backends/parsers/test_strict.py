"""In strict mode, calls in free answers follow the tools' schemas for any model output."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from sglang_plug import OutputParser, Plugins

STRICT = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["celsius", 'it\'s "hot" [x(y=1)]', "<|end|></tool_call>"]},
    },
    "required": ["days", "unit"],
    "additionalProperties": False,
}
FUNCTIONS: Mapping[str, Mapping[str, Any]] = {"weather": STRICT, "note": {"type": "object"}}
VALIDATORS = {name: Draft202012Validator(schema) for name, schema in FUNCTIONS.items()}

OBJECT = '{"name": "%s", "%s": %s}'
ARGUMENTS = ('{"days": 3, "unit": "celsius"}', '{"days": 33}', '{"other": [1]}', "{}", '"text"', "{")
NAMES = ("weather", "note", "unknown", "wea")
DEEP = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>%s\n```json\n%s\n```<｜tool▁call▁end｜>"
MESSAGE = "<|channel|>commentary to=functions.%s <|constrain|>json<|message|>%s"


def objects(opening: str, closing: str, key: str = "arguments") -> list[str]:
    return [opening + OBJECT % (name, key, arguments) + closing for name in NAMES for arguments in ARGUMENTS]


def python(opening: str, closing: str) -> list[str]:
    candidates = ("days=3, unit='celsius'", 'days=3, unit="celsius"', "days=33", "x=[1, None]", "", "(", "1")
    return [f"{opening}{name}({item}){closing}" for name in NAMES for item in candidates]


def pairs(form: str) -> list[str]:
    return [form % (name, arguments) for name in NAMES for arguments in ARGUMENTS]


QWEN = "<tool_call>\n<function=%s>\n%s</function>\n</tool_call>", "<parameter=%s>\n%s\n</parameter>\n"
MINIMAX = (
    '<minimax:tool_call>\n<invoke name="%s">\n%s</invoke>\n</minimax:tool_call>',
    '<parameter name="%s">%s</parameter>\n',
)
GLM = "<tool_call>%s\n%s</tool_call>", "<arg_key>%s</arg_key>\n<arg_value>%s</arg_value>\n"
DSML = (
    '<｜DSML｜function_calls>\n<｜DSML｜invoke name="%s">\n%s</｜DSML｜invoke>\n</｜DSML｜function_calls>',
    '<｜DSML｜parameter name="%s" string="%s">%s</｜DSML｜parameter>\n',
)
KIMI = (
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>functions.%s:%d<|tool_call_argument_begin|>%s<|tool_call_end|>",
)


def tagged(call: str, argument: str, *values: tuple[str, str]) -> str:
    """Return the arguments, and then the call with a placeholder for its name."""
    return call % ("%s", "".join(argument % value for value in values))


def tagged_calls(call: str, argument: str) -> list[str]:
    """Return calls with valid and invalid arguments."""
    values = [
        (("days", "3"), ("unit", "celsius")),
        (("unit", '"celsius"'), ("days", "3")),
        (("days", "33"),),
        (("city", "Oslo"), ("days", "2"), ("unit", "<|end|></tool_call>")),
        (("any", "[1, null]"),),
        (),
    ]
    return [tagged(call, argument, *items) % name for name in NAMES for items in values] + [argument % ("days", "1")]


FREE = ["Hello. ", "{}", "[1, 2]", '[{"a": 1}]', '{"name', "[x]", "(", "é漢", "\n", " ", "<", "<|", "[", "; ", ", "]
WISHES: dict[str, list[str]] = {
    "hermes": [*objects("<tool_call>", "</tool_call>"), *objects("<tool_call>\n", "\n</tool_call>"), "</tool_call>"],
    "llama3": [*objects("<|python_tag|>", "", "parameters"), *objects("", "; "), *objects("\n", ""), "<|python_tag|>x"],
    "mistral": [
        *objects("[TOOL_CALLS][", "]"),
        *objects("[", ", "),
        *objects(" [ ", "]", "parameters"),
        *pairs("[TOOL_CALLS]%s[ARGS]%s"),
        *pairs("[TOOL_CALLS]%s[CALL_ID]123456789[ARGS]%s"),
        '[{"arguments": {}, "name": "weather"}]',
        '[{"n\\u0061me": "weather", "arguments": {}}]',
        "[TOOL_",
        "CALLS]",
    ],
    "deepseekv3": [
        *pairs(DEEP[0] + DEEP[1]),
        *pairs(DEEP[1]),
        *pairs("<｜tool▁call▁begin｜>%s<｜tool▁sep｜>%s<｜tool▁call▁end｜>"),
        "<｜tool▁calls▁end｜>",
    ],
    "deepseekv31": pairs("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>%s<｜tool▁sep｜>%s<｜tool▁call▁end｜>"),
    "qwen3_coder": [*tagged_calls(*QWEN), "<function=note>\n</function>", "<function=", "</parameter>"],
    "glm45": [*tagged_calls(*GLM), '<tool_call>{"name": "note"}</tool_call>', "</arg_value>"],
    "minimax-m2": [*tagged_calls(*MINIMAX), '<invoke name="note">\n</invoke>', "</parameter>"],
    "deepseekv32": [
        *tagged_calls(DSML[0], DSML[1].replace('"%s">', '"true">')),
        *tagged_calls(DSML[0], DSML[1].replace('"%s">', '"false">')),
        '<｜DSML｜invoke name="weather">{}',
    ],
    "kimi_k2": [KIMI[0] + KIMI[1] % (name, 0, arguments) for name in NAMES for arguments in ARGUMENTS],
    "gemma4": [
        *pairs("<|tool_call>call:%s%s<tool_call|>"),
        *(f'<|tool_call>call:{name}{{days:3,unit:<|"|>celsius<|"|>}}<tool_call|>' for name in NAMES),
    ],
    "granite": objects("<|tool_call|>[", "]") + objects("<tool_call>[", "]"),
    "lfm2": [*python("<|tool_call_start|>[", "]<|tool_call_end|>"), *python("[", "]")],
    "pythonic": [*python("[", "]"), *python("[", ", "), *python("<|python_start|>[", "]<|python_end|>"), "\n[ é("],
    "gpt-oss": [
        *pairs(MESSAGE),
        *pairs("<|end|><|start|>assistant" + MESSAGE),
        *pairs("<|call|><|start|>assistant" + MESSAGE),
        *pairs(MESSAGE + "<|call|><|start|>assistant" + MESSAGE % ("note", "{}")),
        *pairs(" to=functions.%s<|channel|>commentary<|message|>%s<|call|>"),
        *pairs("<|end|><|start|>assistant to=functions.%s<|channel|>analysis json<|message|>%s<|call|>"),
        "<|channel|>analysis<|message|>I think. ",
        "<|channel|>commentary<|message|>I say. ",
        "<|end|><|start|>assistant<|channel|>final<|message|>Done",
        "<|channel|>final <|constrain|>json<|message|>{}",
        "<|start|>assistant<|message|>",
        "<|return|>",
        "<|end|>",
    ],
}
SPECIAL: dict[str, tuple[str, ...]] = {
    "llama3": ("<|python_tag|>", "<|eom_id|>"),
    "mistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    "pythonic": ("<|python_start|>", "<|python_end|>"),
    "kimi_k2": (
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
    ),
    "lfm2": ("<|tool_call_start|>", "<|tool_call_end|>"),
    "gemma4": ("<|tool_call>", "<tool_call|>", '<|"|>'),
    "granite": ("<|tool_call|>",),
    "minimax-m2": ("<minimax:tool_call>", "</minimax:tool_call>"),
    "gpt-oss": ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|return|>", "<|call|>", "<|constrain|>"),
}
"""Special tokens of the models that use a format."""
OUTPUTS = int(os.environ.get("RANDOM_OUTPUTS", "30"))
"""Largest number of random outputs of a format."""
ENOUGH = OUTPUTS * 2 // 5
"""Number of outputs after which no more are generated if some of them have calls and others do not."""
BACKENDS = ("xgrammar", "llguidance")


@pytest.fixture(scope="module")
def parsers() -> dict[str, type[OutputParser]]:
    plugins = Plugins.discover()
    return {name: plugins.get("tool-parser", name).load(OutputParser) for name in plugins.names("tool-parser")}


@pytest.fixture(params=BACKENDS)
def compiled(request: pytest.FixtureRequest, parsers: Any, grammar_backends: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``compiled(parser, parallel=…, special=…)``: the constraint for ``functions`` in one backend."""

    def make(name: str, *, parallel: bool = True, special: bool = False, functions: Any = FUNCTIONS) -> Any:
        constraint = parsers[name].structure(functions, required=False, parallel=parallel)
        backend = grammar_backends(request.param, SPECIAL.get(name, ()) if special else ())
        return backend(constraint.kind, constraint.source)

    return make


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize(
    ("name", "special"), [*((name, False) for name in WISHES), *((name, True) for name in SPECIAL)]
)
def test_whatever_a_model_wants_calls_keep_to_their_schemas(
    parsers: Any, compiled: Callable[..., Any], read: Any, name: str, special: bool, parallel: bool
) -> None:
    output = compiled(name, parallel=parallel, special=special)
    wishes = [wish.encode() for wish in (*WISHES[name], *FREE)]
    counts = []
    for seed in range(OUTPUTS):
        text = output.steer(seed, wishes)
        if text is None:
            continue
        events = read(parsers[name], text.decode(), functions=FUNCTIONS)
        calls = [item for item in events if isinstance(item, tuple) and item[0] != "thought"]
        for index, (number, called, arguments) in enumerate(calls):
            assert number == index and called in FUNCTIONS, text
            assert VALIDATORS[called].is_valid(json.loads(arguments)), text
        assert parallel or len(calls) < 2, text
        counts.append(len(calls))
        if len(counts) >= ENOUGH and 0 in counts and max(counts) > 0:
            return
    pytest.fail(f"the outputs have these numbers of calls: {counts}")


GOOD, OTHER = '{"days": 3, "unit": "celsius"}', '{"any": [1, null]}'
BOTH = (("weather", GOOD), ("note", OTHER))
VALUES, OTHERS = (("days", "3"), ("unit", "celsius")), (("any", "[1, null]"),)
TWO = {
    "hermes": f"""Let me see.
<tool_call>
{OBJECT % ("weather", "arguments", GOOD)}
</tool_call>
<tool_call>
{OBJECT % ("note", "arguments", OTHER)}
</tool_call>""",
    "llama3": f"So <|python_tag|>{OBJECT % ('weather', 'parameters', GOOD)}; {OBJECT % ('note', 'parameters', OTHER)}",
    "mistral": f"[TOOL_CALLS]weather[ARGS]{GOOD}[TOOL_CALLS]note[ARGS]{OTHER}",
    "deepseekv3": f"I ask.{DEEP[0]}{DEEP[1] % ('weather', GOOD)}\n{DEEP[1] % ('note', OTHER)}<｜tool▁calls▁end｜>",
    "deepseekv31": "I ask.<｜tool▁calls▁begin｜>"
    + "".join(f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{item}<｜tool▁call▁end｜>" for name, item in BOTH)
    + "<｜tool▁calls▁end｜>",
    "kimi_k2": KIMI[0]
    + "".join(KIMI[1] % (name, number, item) for number, (name, item) in enumerate(BOTH))
    + "<|tool_calls_section_end|>",
    "gemma4": "I ask." + "".join(f"<|tool_call>call:{name}{item}<tool_call|>" for name, item in BOTH),
    "qwen3_coder": "I ask.\n" + tagged(*QWEN, *VALUES) % "weather" + "\n" + tagged(*QWEN, *OTHERS) % "note",
    "glm45": "I ask.\n" + tagged(*GLM, *VALUES) % "weather" + "\n" + tagged(*GLM, *OTHERS) % "note",
    "minimax-m2": tagged(*MINIMAX, *VALUES) % "weather" + tagged(*MINIMAX, *OTHERS) % "note",
    "deepseekv32": DSML[0] % ("weather", DSML[1] % ("days", "false", "3") + DSML[1] % ("unit", "true", "celsius"))
    + DSML[0] % ("note", DSML[1] % ("any", "false", "[1, null]")),
    "granite": f"<|tool_call|>[{OBJECT % ('weather', 'arguments', GOOD)}, {OBJECT % ('note', 'arguments', OTHER)}]",
    "lfm2": '<|tool_call_start|>[weather(days=3, unit="celsius"), note(any=[1, None])]<|tool_call_end|>',
    "pythonic": '[weather(days=3, unit="celsius"), note(any=[1, None])]',
    "gpt-oss": "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    + MESSAGE % ("weather", GOOD)
    + "<|call|><|start|>assistant"
    + MESSAGE % ("note", OTHER),
}
"""Two calls as models generate them."""
MORE = {
    "llama3": "".join((OBJECT % ("weather", "parameters", GOOD), "; ", OBJECT % ("note", "parameters", OTHER))),
    "mistral": f"[{OBJECT % ('weather', 'arguments', GOOD)}, {OBJECT % ('note', 'arguments', OTHER)}]",
    "pythonic": 'So <|python_start|>[weather(days=3, unit="celsius"), note(any=[1, None])]<|python_end|>.',
    "gpt-oss": "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    + TWO["gpt-oss"].partition("assistant")[2],
}
ANSWERS = ("", "Hello.", " [1, 2] ", '{"a": [1]}', '[{"a": 1}]', "<b>[x](y)</b>", "{", "[", "a < b", '"', "é 漢\n")


@pytest.mark.parametrize(("name", "text"), [*TWO.items(), *MORE.items()])
def test_good_calls_may_be_written(parsers: Any, compiled: Callable[..., Any], read: Any, name: str, text: str) -> None:
    output = compiled(name)
    assert output.accepts(text) and not compiled(name, parallel=False).accepts(text)
    calls = [
        (item[1], json.loads(item[2])) for item in read(parsers[name], text, functions=FUNCTIONS) if item[0] in (0, 1)
    ]
    assert calls == [("weather", json.loads(GOOD)), ("note", json.loads(OTHER))]
    assert not output.accepts(text.replace("celsius", "kelvin"))
    assert not output.accepts(text.replace("weather", "weathers"))
    assert not output.accepts(text.replace("note", "other"))


@pytest.mark.parametrize("name", TWO)
def test_answers_are_free(parsers: Any, compiled: Callable[..., Any], read: Any, name: str) -> None:
    for parallel in (True, False):
        output = compiled(name, parallel=parallel)
        assert [text for text in ANSWERS if not output.accepts(text)] == []
    assert [text for text in ANSWERS if text and read(parsers[name], text) != [text]] == []


def referring(definition: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a function with one argument, whose schema is a definition."""
    return {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/A"}},
        "required": ["x"],
        "additionalProperties": False,
        "$defs": {"A": definition},
    }


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("hermes", '<tool_call>\n{"name": "%s", "arguments": {"x": %s}}\n</tool_call>'),
        ("granite", '<|tool_call|>[{"name": "%s", "arguments": {"x": %s}}]'),
        ("lfm2", "<|tool_call_start|>[%s(x=%s)]<|tool_call_end|>"),
        ("minimax-m2", MINIMAX[0] % ("%s", '<parameter name="x">%s</parameter>\n')),
    ],
)
def test_definitions_of_one_name_belong_to_their_function(compiled: Callable[..., Any], name: str, call: str) -> None:
    """No joint schema is built, so requests need not be refused for definitions that differ."""
    output = compiled(name, functions={"f": referring({"type": "integer"}), "g": referring({"enum": [True]})})
    true = "True" if name == "lfm2" else "true"
    assert output.accepts(call % ("f", "3")) and output.accepts(call % ("g", true))
    assert not output.accepts(call % ("f", true)) and not output.accepts(call % ("g", "3"))
