"""A chat template that attacks the server: the request that triggers it is refused, all others are served."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from .document_models import demo

CHAT = "/v1/chat/completions"
TEMPLATE = """\
{%- for message in messages %}
    {%- if message.content == 'memory' %}{{ message.content * 10**9 }}{% endif %}
    {%- if message.content == 'time' %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}
    {%- endif %}
    {{- message.content }}
{%- endfor %}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, module_launcher: Any) -> Any:
    """A server of a checkpoint whose template is hostile."""
    folder = Path(shutil.copytree(demo(), tmp_path_factory.mktemp("hostile") / "model"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return module_launcher.in_thread("--model-path", str(folder))


def chat_body(content: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 2, **fields}


def test_a_template_that_takes_too_much_is_refused_and_harms_nobody(server: Any) -> None:
    with ThreadPoolExecutor(3) as threads:
        hostile = [threads.submit(server.post, CHAT, json=chat_body(name)) for name in ["time"] * 2 + ["memory"]]
        while wait(hostile, timeout=0.1).not_done:
            assert server.generate({"text": "Once", "sampling_params": {"max_new_tokens": 2}})["text"]
        answers = [future.result() for future in hostile]
    assert {answer.status_code for answer in answers} == {400}
    errors = [answer.json()["error"] for answer in answers]
    assert [error["param"] for error in errors] == ["messages"] * 3
    assert ["takes more than 5 seconds" in error["message"] for error in errors] == [True, True, False], errors
    assert "memory" in errors[2]["message"].lower()
    assert server.post(CHAT, json=chat_body("Hello")).status_code == 200


@pytest.mark.parametrize("name", ["range", "namespace", "strftime_now", "bos_token", "messages"])
def test_template_variables_cannot_replace_functions(server: Any, name: str) -> None:
    answer = server.post(CHAT, json=chat_body("Hello", chat_template_kwargs={name: "value"}))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "chat_template_kwargs" and repr(name) in error["message"]
