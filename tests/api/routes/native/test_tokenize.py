"""Tests of ``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_plug_api.routes.native.tokenize import MAX_DECODED_TOKENS
from tests.api.letters import Letters

HELLO = "Hello, wörld! 你好 🙂"


@pytest.mark.parametrize("path", ["/tokenize", "/v1/tokenize"])
def test_a_text(app: Any, path: str) -> None:
    answer = app.answer(path, {"model": "m", "prompt": HELLO})
    assert answer["tokens"] == app.engine.tokenizer.encode(HELLO)
    assert answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] == app.info["context_length"]
    assert set(answer) == {"tokens", "count", "max_model_len"}


def test_several_texts(app: Any) -> None:
    texts = ["one", "", "two three"]
    answer = app.answer("/tokenize", {"prompt": texts, "return_token_strs": True})
    alone = [app.answer("/tokenize", {"prompt": text, "return_token_strs": True}) for text in texts]
    for key in ("tokens", "count", "token_strs"):
        assert answer[key] == [entry[key] for entry in alone]
    assert app.answer("/tokenize", {"prompt": []})["tokens"] == []


def test_special_tokens(app: Any) -> None:
    plain = app.answer("/tokenize", {"prompt": "Hello", "add_special_tokens": False})["tokens"]
    assert plain == app.engine.tokenizer.encode("Hello", special=False)


def test_token_texts_make_the_text(app: Any) -> None:
    answer = app.answer("/tokenize", {"prompt": "Hello there", "add_special_tokens": False, "return_token_strs": True})
    assert "".join(answer["token_strs"]) == "Hello there"


def test_a_conversation_is_what_chat_would_send(app: Any) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "What is the capital of France?"}]}]
    answer = app.answer("/tokenize", {"messages": messages})
    chat = app.answer("/v1/chat/completions", {"messages": messages, "max_tokens": 1})
    assert answer["count"] == chat["usage"]["prompt_tokens"]
    open_ended = app.answer("/tokenize", {"messages": messages, "add_generation_prompt": False})
    assert answer["tokens"][: open_ended["count"]] == open_ended["tokens"]
    assert open_ended["count"] < answer["count"]
    assert app.answer("/tokenize", {"messages": messages, "add_generation_prompt": None}) == answer


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=80))
def test_the_way_there_and_back(app: Any, text: str) -> None:
    tokens = app.answer("/tokenize", {"prompt": text})["tokens"]
    kept = app.answer("/detokenize", {"tokens": tokens, "skip_special_tokens": False})["text"]
    assert kept.endswith(text)
    assert app.answer("/v1/detokenize", {"tokens": tokens})["text"] == text


def test_special_tokens_are_skipped_or_shown(app: Any) -> None:
    special = app.engine.tokenizer.eos_token_ids[0]
    assert app.answer("/detokenize", {"tokens": [special]})["text"] == ""
    assert app.answer("/detokenize", {"tokens": [special], "skip_special_tokens": False})["text"] != ""


def test_several_lists_of_tokens(app: Any) -> None:
    texts = ["one", "two three"]
    tokens = app.answer("/tokenize", {"prompt": texts})["tokens"]
    assert app.answer("/detokenize", {"tokens": [*tokens, []]})["text"] == [*texts, ""]
    assert app.answer("/detokenize", {"tokens": []})["text"] == ""


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, None),
        ("/tokenize", {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, None),
        ("/tokenize", {"prompt": 3}, "prompt"),
        ("/tokenize", {"prompt": [1, 2]}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ("/tokenize", {"messages": [{"role": "nobody", "content": "x"}]}, "messages.0.role"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
        ("/detokenize", {"tokens": [[0], [10**9]]}, "tokens"),
        ("/detokenize", {"tokens": [1.5]}, "tokens"),
    ],
)
def test_refusals(app: Any, path: str, body: dict[str, Any], param: str | None) -> None:
    error = app.refusal(path, body)
    assert (error["param"] or "").startswith(param or "")
    assert error["type"] == "BadRequestError"


def test_the_first_id_beyond_the_vocabulary_is_refused(app: Any) -> None:
    size = app.engine.tokenizer.vocab_size
    app.answer("/detokenize", {"tokens": [size - 1]})
    assert (
        f"token id {size} is not in the vocabulary of {size}"
        in app.refusal("/detokenize", {"tokens": [0, size]})["message"]
    )


def test_strict_model_names(apps: Callable[..., Any]) -> None:
    strict = apps(strict_model_name=True, served_model_name="demo")
    assert strict.refusal("/tokenize", {"model": "other", "prompt": "x"}, 404)["code"] == "model_not_found"
    strict.answer("/tokenize", {"model": "demo", "prompt": "x"})


def test_without_a_tokenizer(apps: Callable[..., Any]) -> None:
    app = apps(skip_tokenizer_init=True)
    assert "--skip-tokenizer-init" in app.refusal("/tokenize", {"prompt": "x"})["message"]
    assert "--skip-tokenizer-init" in app.refusal("/detokenize", {"tokens": [1]})["message"]


def test_a_text_of_many_tokens_is_refused(app: Any) -> None:
    """The number of tokens is limited, because the tokenizer holds the GIL while it decodes them."""
    answer = app.post("/detokenize", {"tokens": [1] * (MAX_DECODED_TOKENS + 1)})
    assert answer.status_code == 400
    assert (
        answer.json()["error"]["message"]
        == f"a text of {MAX_DECODED_TOKENS + 1} tokens; the maximum is {MAX_DECODED_TOKENS}"
    )


class NotesThreads(Letters):
    """A tokenizer that records the thread of each call."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        self.threads.append(threading.current_thread())
        return super().encode(text, special=special)


async def test_many_texts_are_tokenised_in_one_go(scripted_client: Any) -> None:
    """All texts of a request are tokenised in one call of a worker thread instead of one call for each text."""
    tokenizer = NotesThreads()
    answer = await scripted_client(tokenizer=tokenizer).post("/tokenize", json={"prompt": ["one two three"] * 500})
    threads = tokenizer.threads
    assert len(answer.json()["tokens"]) == 500
    assert len(threads) == 500 and len(set(threads)) == 1
    assert "ThreadPool" in threads[0].name or "asyncio" in threads[0].name, threads[0].name
