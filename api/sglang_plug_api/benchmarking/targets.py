"""The model that is measured: on a server, or in this process."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol, cast

import httpx

from sglang_plug import ConfigError, Plugins, RequestError
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.offline.engine import ONE_ENGINE, Engine
from sglang_plug_api.options.parsing import server_config
from sglang_plug_api.terminal.connection import QUIET, refuse_server_options

from .arguments import BACKENDS, KEY_VARIABLE, pairs
from .figures import RequestResult
from .load import Api, Load, request_headers, send_all
from .prompts import Prompt

VOCABULARY = 8000
"""Number of token ids of random prompts for servers that do not tell the size of their vocabulary."""
CONNECT_SECONDS = 10.0
SAMPLING = ("temperature", "top_p", "top_k", "min_p")


class Target(Protocol):
    """Answers prompts."""

    model: str
    """Name of the model."""
    vocabulary: int | None
    """Number of token ids; ``None`` if prompts have to be text."""

    def run(self, prompts: Sequence[Prompt], done: Callable[[], None]) -> tuple[list[RequestResult], float]:
        """Answer all prompts; return the results in their order, and the seconds until the last one ended.

        Args:
            prompts: one for each request.
            done: called when a request has ended.
        """


class ServerTarget:
    """A model on a server. Raises ``ConfigError`` if the server cannot be reached or lists no model.

    Args:
        load: how the requests are sent; without a model, the first one of the server is asked.
    """

    def __init__(self, load: Load) -> None:
        url = load.base_url
        try:
            with httpx.Client(base_url=url, headers=request_headers(load), timeout=CONNECT_SECONDS) as client:
                listed = client.get("/v1/models")
                listed.raise_for_status()
                self.model = load.model or str(listed.json()["data"][0]["id"])
                info = client.get("/server_info")
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as error:
            raise ConfigError(f"no model is listed at {url}/v1/models: {error}") from error
        self.load = load.with_model(self.model)
        self.vocabulary = None if load.api == "openai-chat" else _vocabulary(info)

    def run(self, prompts: Sequence[Prompt], done: Callable[[], None]) -> tuple[list[RequestResult], float]:
        """Send the requests as the load says."""
        return asyncio.run(send_all(self.load, prompts, done))


class EngineTarget:
    """A model in this process, without HTTP.

    The results have one arrival each, the end of the request.

    Args:
        engine: the model.
        load: sampling and the maximum number of requests in flight.
    """

    def __init__(self, engine: Engine, load: Load) -> None:
        self._engine, self._load = engine, load
        info = engine.get_server_info()
        self.model = Path(info["checkpoint_path"]).name
        self.vocabulary: int | None = int(info["vocab_size"])

    def run(self, prompts: Sequence[Prompt], done: Callable[[], None]) -> tuple[list[RequestResult], float]:
        """Generate for all prompts at once, or for as many as may be in flight."""
        return asyncio.run(self._run(prompts, done))

    async def _run(self, prompts: Sequence[Prompt], done: Callable[[], None]) -> tuple[list[RequestResult], float]:
        limit = self._load.max_concurrency
        semaphore = asyncio.Semaphore(limit) if limit else nullcontext()
        started = time.perf_counter()

        async def generate(prompt: Prompt) -> RequestResult:
            async with semaphore:
                result = RequestResult(sent=time.perf_counter() - started)
                await self._generate(prompt, result)
                result.finished = time.perf_counter() - started
                if not result.error:
                    result.arrivals.append(result.finished)
            done()
            return result

        results = await asyncio.gather(*map(generate, prompts))
        return results, time.perf_counter() - started

    async def _generate(self, prompt: Prompt, result: RequestResult) -> None:
        text, ids = (prompt.content, None) if isinstance(prompt.content, str) else (None, prompt.content)
        sampling = {
            "max_new_tokens": prompt.output_len,
            "ignore_eos": self._load.ignore_eos,
            **self._load.sampling,
        }
        try:
            answer = await self._engine.async_generate(text, sampling, input_ids=ids)
        except (ApiError, RequestError) as error:
            result.error = str(error)[:200]
            return
        meta = cast("dict[str, Any]", answer)["meta_info"]
        result.prompt_tokens, result.output_tokens = meta["prompt_tokens"], meta["completion_tokens"]


@contextmanager
def open_target(options: argparse.Namespace, plugins: Plugins) -> Iterator[Target]:
    """Yield the model at ``--url``, or the one that the options of ``serve`` describe, in this process.

    Raises ``ConfigError`` if there is no such server or the model cannot be served.
    """
    if options.url is not None:
        refuse_server_options(options)
        yield ServerTarget(load_of(options))
        return
    if options.model_name is not None or options.endpoint is not None or options.header:
        raise ConfigError("--model-name, --endpoint and --header belong to --url; without it, MODEL names the model")
    if vars(options).get("deployment", "thread") != "thread":
        raise ConfigError(f"--deployment: {ONE_ENGINE}; to measure such a server, start it and name it with --url")
    config = server_config(argparse.Namespace(**{"log_level": QUIET, **vars(options)}), plugins)
    logging.basicConfig(level=config.engine.log_level.upper(), format="%(message)s")
    print("Loading the model ...", file=sys.stderr, flush=True)
    with Engine.of(config, plugins) as engine:
        yield EngineTarget(engine, load_of(options))


def load_of(options: argparse.Namespace) -> Load:
    """Return the load that the arguments of ``arguments`` describe."""
    keys = getattr(options, "api_key", None)  # one key of a client, or the keys that a server accepts
    key = keys if isinstance(keys, str) else next(iter(keys or ()), None)
    url = getattr(options, "url", None) or getattr(options, "base_url", None)
    if url is None:
        url = f"http://{options.host}:{options.port}" if "base_url" in vars(options) else ""
    sampling = {name: value for name in SAMPLING if (value := getattr(options, name)) is not None}
    return Load(
        base_url=url.rstrip("/").removesuffix("/v1"),
        api=cast(Api, BACKENDS[options.backend]),
        model=getattr(options, "model_name", None) or ("" if "url" in vars(options) else options.model or ""),
        api_key=key or os.environ.get(KEY_VARIABLE),
        max_concurrency=getattr(options, "max_concurrency", None),
        ignore_eos=options.ignore_eos,
        sampling=sampling,
        seed=options.seed,
        endpoint=options.endpoint,
        headers=pairs(options.header, "--header"),
    )


def _vocabulary(info: httpx.Response) -> int:
    try:
        return int(info.json()["vocab_size"])
    except (ValueError, LookupError, TypeError):
        return VOCABULARY


class Progress:
    """A line on a terminal with the number of finished parts; used in ``with``.

    Args:
        total: how many parts there are.
        options: ``--disable-tqdm`` hides the line.
        unit: what is counted.
    """

    def __init__(self, total: int, options: argparse.Namespace, unit: str = "requests") -> None:
        self._total = total
        self._unit = unit
        self._done = 0
        self._is_visible = sys.stderr.isatty() and not options.disable_tqdm

    def __enter__(self) -> Progress:
        return self

    def step(self) -> None:
        """Count one more."""
        self._done += 1
        if self._is_visible:
            print(f"\r{self._done}/{self._total} {self._unit}", end="", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self._is_visible:
            print(file=sys.stderr)
