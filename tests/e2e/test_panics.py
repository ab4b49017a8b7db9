"""If a library raises an error that is no ``Exception``, answers keep the error format, and the server serves on."""

from __future__ import annotations

import json
from typing import Any

import pytest

TOKENIZER = """
from __future__ import annotations

from sglang_plug import RouteSpec, TokenizerSpec, hookimpl


@hookimpl
def register_tokenizers():
    yield TokenizerSpec(name="panics", target=f"{__name__}:load")


@hookimpl
def register_routes():
    yield RouteSpec(name="panics", target=f"{__name__}:build", summary="panics")


class PanicException(BaseException):
    pass


def check(text):
    if "PANIC" in text:
        raise PanicException("called `Option::unwrap()` on a `None` value")
    if "HALT" in text:
        raise StopIteration


class Decoder:
    def __init__(self, decoder, panics):
        self._decoder, self._panics, self._fed = decoder, panics, 0

    def feed(self, tokens):
        self._fed += 1
        if self._panics and self._fed > 2:
            raise PanicException("decode")
        return self._decoder.feed(tokens)

    def flush(self):
        return self._decoder.flush()


def load(source):
    from sglang_plug_backends.huggingface.tokenizer import load_tokenizer

    own = load_tokenizer(source)

    class Panics(type(own)):
        def __init__(self):
            self.__dict__.update(own.__dict__)

        def encode(self, text, *, special=True):
            check(text)
            return own.encode(text, special=special)

        def decode(self, tokens, *, skip_special=True):
            text = own.decode(tokens, skip_special=skip_special)
            check(text.replace("decoded", "PANIC"))
            return text

        def chat(self, messages, **options):
            if "TEMPLATE" in str(messages):
                raise PanicException("chat")
            return own.chat(messages, **options)

        def decoder(self, *, skip_special=True, prompt=()):
            panics = "broken" in own.decode(prompt)
            return Decoder(own.decoder(skip_special=skip_special, prompt=prompt), panics)

    return Panics()


def build(engine):
    from fastapi import APIRouter

    router = APIRouter()

    @router.get("/panic")
    async def panic():
        raise PanicException("route")

    return router
"""
LONG_TEXT = "a word " * 1000
HIDDEN = "internal error; the server's log has the details"
CHAT: Any = {"model": "x", "max_tokens": 8}


@pytest.fixture(scope="module")
def panicking(module_launcher: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server whose tokenizer panics at certain words."""
    plugin = tmp_path_factory.mktemp("plugin") / "panics.py"
    plugin.write_text(TOKENIZER)
    return module_launcher.in_thread("--plugin", str(plugin), "--tokenizer-mode", "panics")


def message(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def check_error(answer: Any, sent_id: str) -> None:
    assert answer.status_code == 500, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"] == sent_id
    assert answer.json()["error"]["message"] == HIDDEN


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": "PANIC"}),
        ("/generate", {"text": f"{LONG_TEXT} PANIC"}),
        ("/generate", {"text": f"{LONG_TEXT} HALT"}),
        ("/generate", {"text": ["x", "PANIC"], "sampling_params": {"max_new_tokens": 2}}),
        ("/generate", {"text": "PANIC", "stream": True}),
        ("/generate", {"text": "broken", "sampling_params": {"max_new_tokens": 20, "ignore_eos": True, "n": 2}}),
        ("/v1/completions", {"model": "x", "prompt": "PANIC"}),
        ("/v1/completions", {"model": "x", "prompt": "broken", "max_tokens": 20, "ignore_eos": True, "n": 2}),
        ("/v1/chat/completions", {**CHAT, "messages": message("PANIC")}),
        ("/v1/chat/completions", {**CHAT, "messages": message("TEMPLATE")}),
        ("/v1/chat/completions", {**CHAT, "messages": message("PANIC"), "stream": True}),
        ("/v1/responses", {"model": "x", "input": "PANIC"}),
        ("/tokenize", {"prompt": "PANIC"}),
        ("/tokenize", {"prompt": "HALT"}),
    ],
)
def test_a_panic_is_an_error_in_the_usual_format(panicking: Any, path: str, body: Any) -> None:
    sent_id = f"panic-{len(json.dumps(body))}"
    check_error(panicking.post(path, body, headers={"x-request-id": sent_id}), sent_id)


def test_a_panic_while_decoding_ends_a_stream_with_an_error_event(panicking: Any) -> None:
    params = {"max_new_tokens": 20, "ignore_eos": True}
    events = panicking.events("/generate", {"text": "broken", "sampling_params": params})
    assert events[-1]["error"]["message"] == HIDDEN and len(events) > 1
    chat = {**CHAT, "max_tokens": 20, "ignore_eos": True, "messages": message("broken")}
    assert panicking.events("/v1/chat/completions", chat)[-1]["error"]["message"] == HIDDEN


def test_detokenizing_and_routes_of_plugins_panic_in_the_usual_format(panicking: Any) -> None:
    tokens = panicking.post("/tokenize", {"prompt": "decoded", "add_special_tokens": False}).json()["tokens"]
    check_error(panicking.post("/detokenize", {"tokens": tokens}, headers={"x-request-id": "a"}), "a")
    check_error(panicking.get("/panic", headers={"x-request-id": "b"}), "b")


def test_the_server_names_the_component_and_goes_on(panicking: Any) -> None:
    panicking.post("/generate", {"text": "PANIC"})
    assert "tokenizer 'panics'" in panicking.log and "in encode(), failed: PanicException" in panicking.log
    assert panicking.generate({"text": "x", "sampling_params": {"max_new_tokens": 2}})["output_ids"]
    panicking.wait_whole()
