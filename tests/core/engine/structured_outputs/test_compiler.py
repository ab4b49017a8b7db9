"""Choosing the grammar backend, and what it is told of the vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sglang_plug import ConfigError, Constraint, EngineConfig, PluginOptions, Plugins, Request, RequestError
from sglang_plug.config import BackendOptions, CacheOptions, ModelOptions
from sglang_plug.engine.startup.resolve import Resolved, resolve
from sglang_plug.engine.structured_outputs import compiler
from sglang_plug.engine.structured_outputs.compiler import BackendCompiler, GrammarSources, read_vocabulary
from sglang_plug.engine.structured_outputs.grammar_worker import Setup


class Letters:
    """Token ``i`` is a letter, but for the first two."""

    vocab_size = 6
    eos_token_ids = (1, 2)
    special_token_ids = frozenset({0, 1})

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return [ord(one) - 96 for one in text]

    def piece_bytes(self, token: int) -> bytes:
        return b"<s>" if token < 2 else bytes([96 + token])

    def piece(self, token: int) -> str:
        return f"<{token}>"


@pytest.mark.parametrize(("size", "letters"), [(6, 4), (9, 4), (4, 2)])
def test_the_vocabulary_is_as_wide_as_the_models(size: int, letters: int) -> None:
    found = read_vocabulary(Letters(), size, (2, 5))  # type: ignore[arg-type]
    assert list(found.pieces) == [
        b"",
        b"",
        *[bytes([98 + index]) for index in range(letters)],
        *[b""] * (size - letters - 2),
    ]
    assert (found.size, found.words, found.stop_ids) == (size, 1, (2, 5, 1))
    assert found.special == {"<0>": 0, "<1>": 1}


@pytest.fixture
def resolved(tiny_model: Callable[..., Any]) -> Callable[..., Resolved]:
    """``resolved(grammar, *blocked)``."""
    path = tiny_model("llama-3.2-1b").path

    def make(grammar: str, *blocked: str) -> Resolved:
        plugins = PluginOptions(block=blocked)
        config = EngineConfig(
            model=ModelOptions(path=str(path), device="cpu"), backends=BackendOptions(grammar=grammar), plugins=plugins
        )
        return resolve(config, Plugins.discover(plugins))

    return make


def test_a_backend_is_chosen_together_with_a_tokenizer(resolved: Any) -> None:
    for name in ("auto", "xgrammar"):
        found = resolved(name)
        assert found.choices["grammar"].component.spec.name == "xgrammar"
        assert found.choices["tokenizer"].component.spec.name == "huggingface"
        assert found.no_grammars is None
        names = [one.spec.name for one in found.grammars]
        assert names[0] == "xgrammar" and found.grammar_order == tuple(names if name == "auto" else names[:1])


@pytest.mark.parametrize("blocked", ["grammar:xgrammar", "xgrammar"])
def test_without_the_chosen_backend_another_one_is_taken(resolved: Any, blocked: str) -> None:
    pytest.importorskip("llguidance")
    found = resolved("auto", blocked)
    assert found.no_grammars is None and found.grammar_order[0] == "llguidance"
    assert "xgrammar" not in found.grammar_order


def test_none_and_the_lack_of_one_are_reasons(resolved: Any) -> None:
    off = resolved("none")
    assert "grammar" not in off.choices and "--grammar-backend none" in off.no_grammars
    lacking = resolved("auto", *(f"grammar:{name}" for name in Plugins.discover().names("grammar")))
    assert "grammar" not in lacking.choices
    assert lacking.no_grammars.startswith("structured outputs are not available: no grammar named 'xgrammar'")
    with pytest.raises(ConfigError, match="no grammar named 'xgrammer'"):
        resolved("xgrammer")


class Process:
    """In place of a compiling process: says what it was told."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.calls = setup, list[str]()

    def __getattr__(self, name: str) -> Callable[[], None]:
        return lambda: self.calls.append(name)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[Process]:
    """The processes that compilers make, of a tokenizer with letters."""
    made: list[Process] = []
    monkeypatch.setattr(compiler, "_tokenizer", lambda resolved: Letters())
    monkeypatch.setattr(compiler, "GrammarProcess", lambda setup, starting: made.append(Process(setup)) or made[-1])
    return made


def test_helpers_share_the_backends_of_the_engine(resolved: Any, processes: list[Process]) -> None:
    first = BackendCompiler(GrammarSources(resolved("xgrammar")))
    helper = first.helper()
    backends = first.start()
    assert helper.start() is backends
    first.interrupt()
    helper.close()
    assert [one.calls for one in processes] == [["start", "wait_ready", "interrupt"], ["start", "wait_ready", "close"]]
    assert processes[0].setup is processes[1].setup
    assert processes[0].setup.pieces[3:6] == [b"c", b"d", b"e"] and processes[0].setup.backends == ("xgrammar",)


def test_an_interrupted_compiler_starts_no_process(resolved: Any, processes: list[Process]) -> None:
    interrupted = BackendCompiler(GrammarSources(resolved("xgrammar")))
    interrupted.interrupt()
    with pytest.raises(ConfigError, match="the engine is closing"):
        interrupted.start()
    assert [one.calls for one in processes] == [[]]


def test_an_engine_without_a_tokenizer_serves_all_but_constraints(
    tiny_model: Callable[..., Any], serve: Callable[..., Any]
) -> None:
    config = EngineConfig(
        model=ModelOptions(path=str(tiny_model("llama-3.2-1b").path), device="cpu"),
        cache=CacheOptions(max_total_tokens=512),
    )
    engine = serve(config)
    for _ in range(2):
        with pytest.raises(RequestError, match="structured outputs are not available: .*holds no tokenizer") as caught:
            engine.outputs([Request(id="a", tokens=(5, 6), constraint=Constraint("regex", "a"))])
        assert caught.value.status == 400
    (output,) = engine.outputs([Request(id="b", tokens=(5, 6))])
    assert output.tokens
