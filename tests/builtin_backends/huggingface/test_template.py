from __future__ import annotations

import json
import re
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from sglang_plug import TemplateError
from sglang_plug_backends.huggingface.template import ChatTemplate

CHATML = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'bad' %}{{ raise_exception('Unknown role: ' + message.role) }}{% endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- for call in message.tool_calls or [] %}
        {{- call.function.arguments | tojson }}
    {%- endfor %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
PARTS = """\
{% for message in messages %}
{% set content = message['content'] %}
{% if content is string %}{{ content }}{% else %}{% for part in content %}({{ part.text }}){% endfor %}{% endif %}
{% endfor %}
"""
ONLY_PARTS = """\
{% for message in messages %}
{{ message['role'] }}:{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}{{ part['text'] }}
{% endfor %}{% endfor %}
"""
CONTROLS = """\
{% for message in messages %}
{% if message.role == 'system' %}{% continue %}{% endif %}
{% generation %}{{ message.content }}{% endgeneration %}
{% if loop.index == 2 %}{% break %}{% endif %}
{% endfor %}
{{ messages | length }} {{ '<é>' | tojson }} {{ {'b': 1, 'a': [2]} | tojson(indent=2, sort_keys=true) }}
"""
TALK = [
    {"role": "system", "content": "Be <brief>."},
    {"role": "user", "content": "Hällo\n\nthere "},
    {"role": "assistant", "content": " Hi, I am"},
]
TOOL = {"type": "function", "function": {"name": "wetter", "description": "Für <b>Städte</b>"}}


def chat_template(text: str, **constants: Any) -> ChatTemplate:
    return ChatTemplate(text, constants)


@pytest.mark.parametrize("template", [CHATML, PARTS, CONTROLS])
@pytest.mark.parametrize("tools", [None, [TOOL]])
@pytest.mark.parametrize("prompt", [True, False])
def test_renders_as_transformers_does(template: str, tools: list[dict[str, Any]] | None, prompt: bool) -> None:
    ours = chat_template(template).render(TALK, tools=tools, add_generation_prompt=prompt)
    theirs, _ = render_jinja_template([TALK], tools=tools, chat_template=template, add_generation_prompt=prompt)
    assert ours == theirs[0]


def test_constants_and_variables_are_seen() -> None:
    template = chat_template("{{ bos_token }}{{ enable_thinking }}{{ documents }}", bos_token="<s>")
    assert template.render(TALK, variables={"enable_thinking": False, "documents": [1]}) == "<s>False[1]"


def test_the_date_is_known() -> None:
    assert re.fullmatch(r"\d{4}-\d\d", chat_template("{{ strftime_now('%Y-%m') }}").render(TALK))


@pytest.mark.parametrize(
    "name",
    ["messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now", "range", "dict", "namespace"]
    + ["cycler", "joiner", "lipsum", "image_token"],
)
def test_variables_cannot_replace_the_request_or_what_the_template_has(name: str) -> None:
    with pytest.raises(TemplateError, match=f"'{name}' cannot be set") as caught:
        chat_template(CHATML, image_token="<image>").render(TALK, variables={name: 1})
    assert caught.value.about == "variables"


def test_a_templates_own_refusal_is_passed_on() -> None:
    with pytest.raises(TemplateError, match="refuses these messages: Unknown role: bad"):
        chat_template(CHATML).render([{"role": "bad", "content": "x"}])


@pytest.mark.parametrize(
    "text",
    [
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
        "{{ nothing.at.all }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% for i in range(10000000) %}{% endfor %}",
    ],
)
def test_failing_and_forbidden_expressions_are_template_errors(text: str) -> None:
    with pytest.raises(TemplateError, match="the chat template (refuses|cannot render) these messages"):
        chat_template(text).render(TALK)


def test_broken_template() -> None:
    with pytest.raises(TemplateError, match="cannot be compiled"):
        chat_template("{% if %}")


def test_parts_are_joined_for_a_template_that_wants_text() -> None:
    parts = [{"type": "text", "text": "one"}, "two", {"type": "text", "text": "three"}]
    rendered = chat_template(CHATML).render([{"role": "user", "content": parts}], add_generation_prompt=False)
    assert rendered == "<|im_start|>user\none two three<|im_end|>\n"


def test_parts_are_left_to_a_template_that_reads_them() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert chat_template(PARTS).render([{"role": "user", "content": parts}]) == "(one)(two)"


def test_text_is_a_part_for_a_template_that_reads_nothing_else() -> None:
    as_parts = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in TALK]
    template = chat_template(ONLY_PARTS)
    assert template.render(TALK) == template.render(as_parts) and "Be <brief>." in template.render(TALK)
    assert template.render(TALK, continue_final_message=True).endswith(" Hi, I am")
    call = {"function": {"name": "f", "arguments": "{}"}}
    assert template.render([TALK[1], {"role": "assistant", "content": None, "tool_calls": [call]}]).endswith(
        "assistant:"
    )


@pytest.mark.parametrize("template", ["message['content'] | upper", "message['content'][0]['text']"])
def test_text_stays_text_in_messages_that_a_template_reads_so(template: str) -> None:
    mixed = "{% for message in messages %}{% if message['role'] == 'system' %}{{ message['content'] + '|' }}{% else %}"
    mixed += "{{ " + template + " }}{% endif %}{% endfor %}"
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert chat_template(mixed).render(talk) == ("Be brief.|HI" if "upper" in template else "Be brief.|hi")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CHATML, False),
        (PARTS, True),
        ("{{ messages[0].content }}", False),
        ("{{ messages[0].content | tojson }}", False),
        (
            "{% macro f(c) %}{% for p in c %}{{ p['text'] }}{% endfor %}{% endmacro %}{{ f(messages[0].content) }}",
            True,
        ),
        ("no content at all", False),
    ],
)
def test_whether_a_template_reads_parts_is_found_out(text: str, expected: bool) -> None:
    assert chat_template(text).reads_parts is expected


@pytest.mark.parametrize("part", [{"type": "image_url", "image_url": {"url": "x"}}, 3])
def test_parts_without_text_are_refused_by_name(part: object) -> None:
    kind = "image_url" if isinstance(part, dict) else "int"
    with pytest.raises(TemplateError, match=f"text only, not a content part of type '{kind}'"):
        chat_template(CHATML).render([{"role": "user", "content": [part]}])


def test_missing_content_is_empty() -> None:
    expected = "<|im_start|>assistant\n<|im_end|>\n"
    for message in ({"role": "assistant", "content": None}, {"role": "assistant"}):
        assert chat_template(CHATML).render([message], add_generation_prompt=False) == expected


def test_arguments_of_tool_calls_become_objects() -> None:
    def rendered(arguments: Any) -> str:
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        message = {"role": "assistant", "content": "", "tool_calls": [call]}
        text = chat_template(CHATML).render([message], add_generation_prompt=False)
        assert call["function"]["arguments"] is arguments  # type: ignore[index]
        return text.partition("<|im_end|>\n")[2]

    assert rendered('{"city": "Köln"}') == '{"city": "Köln"}'
    assert rendered({"city": "Köln"}) == '{"city": "Köln"}'
    assert rendered("") == "{}"
    assert json.loads(rendered('{"city": ')) == '{"city": '


def test_reasoning_is_found_under_its_common_names() -> None:
    template = chat_template("{{ messages[0].reasoning_content }}")
    for name in ("reasoning_content", "reasoning"):
        assert template.render([{"role": "assistant", "content": "x", name: "because"}]) == "because"


@pytest.mark.parametrize("template", [CHATML, CHATML.replace("message.content", "message.content | trim"), PARTS])
@pytest.mark.parametrize("content", ["Hi, I am ", "Hi", "", "I say [continue] twice [continue]"])
def test_final_message_is_left_open(template: str, content: str) -> None:
    messages = [*TALK[:2], {"role": "assistant", "content": content}]
    ours = chat_template(template).render(messages, continue_final_message=True)
    theirs, _ = render_jinja_template([messages], chat_template=template, continue_final_message=True)
    assert ours == theirs[0]


def test_final_message_of_parts_is_left_open() -> None:
    messages = [{"role": "assistant", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]
    assert chat_template(PARTS).render(messages, continue_final_message=True) == "(one)(two"
    assert chat_template(CHATML).render(messages, continue_final_message=True).endswith("\none two")


@pytest.mark.parametrize(
    ("text", "messages", "message"),
    [
        (CHATML, [], "needs a message"),
        (PARTS, [{"role": "assistant", "content": [{"type": "image"}]}], "needs text"),
        ("nothing", TALK, "does not write the last message"),
    ],
)
def test_final_message_that_cannot_be_continued(text: str, messages: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        chat_template(text).render(messages, continue_final_message=True)
