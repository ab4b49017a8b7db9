"""Fixtures: one-file plugins for tests of the command line, and a scripted engine for tests of the server."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import (
    DraftCounts,
    EngineClient,
    EngineConfig,
    Finish,
    LogprobOptions,
    Observer,
    Output,
    PluginOptions,
    Plugins,
    Request,
    StepStats,
    Store,
    TokenLogprob,
)
from sglang_plug.config import ModelOptions
from sglang_plug_api.options.config import ServerConfig
from sglang_plug_api.service.server_state import ServerState
from sglang_plug_api.stops.stop_regex import StopPatterns
from sglang_plug_api.stores.sqlite.store import SQLiteStore
from sglang_plug_api.stores.storage import Storage, store_context
from sglang_plug_api.text import sampling
from sglang_plug_api.text.parsers import load_parsers
from sglang_plug_api.text.server_facts import ServerFacts
from sglang_plug_api.text.text_engine import TextEngine

from .letters import END, LETTERS, VOCABULARY

HEADER = (
    "from __future__ import annotations\nfrom sglang_plug import hookimpl\nfrom sglang_plug.plugins.specs import *\n"
)

SourceFile = Callable[[str, str], str]
Discover = Callable[..., Plugins]


@pytest.fixture
def plugin_file(tmp_path: Path) -> SourceFile:
    """Return a function that writes a one-file plugin and returns its path: ``plugin_file(name, source)``."""

    def write(name: str, source: str) -> str:
        file = tmp_path / f"{name}.py"
        file.write_text(HEADER + textwrap.dedent(source))
        return str(file)

    return write


@pytest.fixture
def discover() -> Discover:
    """Return a function that discovers the built-in plugins and those in ``files``: ``discover(*files, **options)``."""
    return lambda *files, **options: Plugins.discover(PluginOptions(files=files, **options))


INFO: dict[str, Any] = {
    "tasks": ["generate"],
    "vocab_size": VOCABULARY,
    "context_length": 100,
    "max_total_tokens": 500,
    "eos_token_ids": [END],
    "generation": {"temperature": 0.5, "top_p": None, "max_length": 7},
    "model_path": "org/letters",
    "checkpoint_path": "/models/letters",
    "architecture": "LettersForCausalLM",
    "model_type": "letters",
    "dtype": "float32",
    "device": "cpu",
    "components": {"attention": {"name": "torch", "plugin": "p", "distribution": "d", "version": "1"}},
}


class ScriptedEngine(EngineClient):
    """An engine client that generates ``reply``, ``burst`` tokens at a time, and then the end token."""

    def __init__(self, reply: str = "Hello, world", *, burst: int = 1) -> None:
        self.reply, self.burst = reply, burst
        self.requests: list[Request] = []
        self.aborted: list[str] = []
        self.error: Exception | None = None
        self.interruptions: list[Exception] = []
        """Errors that end the next requests after some tokens."""
        self.dead: str | None = None
        self.listeners: list[Callable[[StepStats], None]] = []
        self.drafts: DraftCounts | None = None
        self.pause = asyncio.Event()
        self.pause.set()

    async def start(self) -> Mapping[str, Any]:
        return INFO

    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        params = request.params
        tokens = [*map(ord, self.reply), END] * 100
        stops = [index for index, token in enumerate(tokens) if token in params.stop_token_ids]
        end = min([*stops, params.max_new_tokens - 1])
        finish = Finish("stop", tokens[end]) if end in stops else Finish("length")
        options = request.logprobs
        finished = False
        try:
            for at in range(0, end + 1, self.burst) or [0]:
                await asyncio.sleep(0)
                await self.pause.wait()
                if at > 2 * self.burst and self.interruptions:
                    raise self.interruptions.pop()
                part = tuple(tokens[at : min(at + self.burst, end + 1)])
                finished = at + self.burst > end
                yield Output(
                    id=request.id,
                    tokens=part,
                    finish=finish if finished else None,
                    cached_tokens=2,
                    logprobs=tuple(_logprob(token, options) for token in part) if options else (),
                    prompt_logprobs=_prompt_logprobs(request) if at == 0 else (),
                    drafts=self.drafts if finished else None,
                )
        finally:
            if not finished:
                self.aborted.append(request.id)

    async def control(self, name: str, **arguments: Any) -> Any:
        return {"success": True, **INFO}

    def on_step(self, listener: Callable[[StepStats], None]) -> None:
        self.listeners.append(listener)

    @property
    def failure(self) -> str | None:
        return self.dead

    async def wait_failed(self) -> str:
        raise NotImplementedError

    async def close(self) -> None:
        pass


def _logprob(token: int, options: LogprobOptions) -> TokenLogprob:
    top = tuple((other, -0.5 - other / 1000) for other in range(token, token + options.top))
    return TokenLogprob(token, -0.5, top, tuple((other, float("-inf")) for other in options.ids))


def _prompt_logprobs(request: Request) -> tuple[TokenLogprob, ...]:
    options = request.logprobs
    if options is None or options.start < 0:
        return ()
    logprobs = [_logprob(token, options) for token in request.tokens]
    logprobs[0] = TokenLogprob(request.tokens[0], None)
    return tuple(logprobs[options.start :])


@pytest.fixture
def scripted() -> ScriptedEngine:
    """An engine whose output the test decides."""
    return ScriptedEngine()


@pytest.fixture
def text_engine(scripted: ScriptedEngine) -> Callable[..., TextEngine]:
    """Return a function that makes a ``TextEngine`` over ``scripted``, with options of ``ServerConfig``.

    It has the parsers that the options name if ``plugins`` are given.
    """

    def make(
        *,
        tokenizer: Any = LETTERS,
        observers: Mapping[str, Observer] | None = None,
        image_prompts: Any = None,
        store: Store | None = None,
        plugins: Plugins | None = None,
        context_length: int = INFO["context_length"],
        **options: Any,
    ) -> TextEngine:
        config = ServerConfig(engine=EngineConfig(model=ModelOptions(path="org/letters")), **options)
        server = ServerFacts(
            storage=Storage(store or SQLiteStore(store_context(config))),
            state=ServerState(weight_version=config.weight_version),
            observers=observers or {},
            plugins={},
        )
        return TextEngine(
            config,
            scripted,
            {**INFO, "context_length": context_length, "max_total_tokens": 5 * context_length},
            tokenizer,
            server=server,
            parsers=None if plugins is None else load_parsers(config, plugins, tokenizer),
            image_prompts=image_prompts,
        )

    return make


@pytest.fixture
def compiled_patterns(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """The stop patterns of requests that were compiled during the test, in order."""
    compiled: list[Sequence[str]] = []

    def compile_patterns(patterns: Sequence[str]) -> StopPatterns:
        compiled.append(patterns)
        return StopPatterns(patterns)

    monkeypatch.setattr(sampling, "StopPatterns", compile_patterns)
    return compiled
