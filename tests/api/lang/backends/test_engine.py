"""Any object with the ``generate`` method of the engine can be a backend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sglang_plug_lang import (
    BackendError,
    EngineBackend,
    flush_cache,
    function,
    gen,
    get_server_info,
    select,
    set_default_backend,
)


class Refusal(Exception):
    status = 400


class Engine:
    """An engine that returns the prompt in upper case, one character after the other."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def generate(self, prompt: Any = None, sampling_params: Any = None, stream: bool = False, **fields: Any) -> Any:
        self.calls.append({"prompt": prompt, "sampling_params": sampling_params, **fields})
        if prompt == "bad":
            raise Refusal("no bad words")
        if isinstance(prompt, list) or "input_ids" in fields:
            rows = [[[-float(len(text)), 0, str(text)]] for text in prompt or fields["input_ids"]]
            return [{"text": "", "meta_info": {"input_token_logprobs": row, "prompt_tokens": 1}} for row in rows]
        return self._stream(prompt) if stream else {"text": prompt.upper(), "meta_info": {"prompt_tokens": 1}}

    def _stream(self, prompt: str) -> Iterator[dict[str, Any]]:
        for end in range(1, len(prompt) + 1):
            yield {"text": prompt[:end].upper(), "meta_info": {}}
            if prompt[:end] == "worse":
                raise Refusal("no worse words")

    def flush_cache(self) -> bool:
        return True

    def get_server_info(self) -> dict[str, Any]:
        return {"model_path": "Qwen/Qwen3-0.6B"}


@function
def program(s: Any, text: str) -> None:
    s += text + gen("x", max_tokens=2)


def test_a_bare_engine_will_do() -> None:
    engine = Engine()
    state = program("ab", backend=engine, temperature=0)
    assert state.text() == "abAB"
    assert engine.calls == [{"prompt": "ab", "sampling_params": {"max_new_tokens": 2, "temperature": 0}}]
    assert EngineBackend(engine).chat_template.name == "qwen"
    assert EngineBackend(engine, chat_template_name="mistral").chat_template.name == "mistral"


def test_streams_and_errors() -> None:
    engine = Engine()
    assert list(program.run("ab", backend=engine, stream=True).text_iter("x")) == ["A", "B"]
    for text, stream in (("bad", False), ("worse words", True)):
        error = program.run(text, backend=engine, stream=stream).error()
        assert isinstance(error, BackendError) and error.status == 400
        assert str(error).startswith("no ")


def test_select_and_the_default() -> None:
    engine = Engine()
    set_default_backend(engine)
    try:
        assert function(lambda s: s.__iadd__("a" + select("x", ["bbb", "c"])))()["x"] == "c"
        assert flush_cache() and get_server_info()["model_path"] == "Qwen/Qwen3-0.6B"
    finally:
        set_default_backend(None)
