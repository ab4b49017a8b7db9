"""Tests of assembling the server over a started engine, and of options that are refused before the start."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_plug import ConfigError, EngineConfig, StepStats
from sglang_plug.config import AdapterOptions, ModelOptions
from sglang_plug_api.lifecycle.assembly import assemble, load_observers, start_components, start_engine
from sglang_plug_api.lifecycle.server import serve
from sglang_plug_api.lifecycle.start_checks import check_media_processor, check_paths
from sglang_plug_api.lifecycle.tokenizer_loading import EarlyTokenizer, load_tokenizer
from sglang_plug_api.options.config import MediaSourcesConfig, ServerConfig, StorageConfig
from tests.e2e.servers import ThreadServer, with_defaults

OBSERVERS = """
    from sglang_plug import Observer

    @hookimpl
    def register_observers():
        yield ObserverSpec(name="watcher", target=f"{__name__}:Watcher", enabled=False)
        yield ObserverSpec(name="no-observer", target=f"{__name__}:Stranger", enabled=False)

    class Watcher(Observer):
        def __init__(self):
            self.info, self.steps = None, []

        def on_start(self, info):
            self.info = info

        def on_step(self, stats):
            self.steps.append(stats)

    class Stranger:
        pass
"""
TOKENIZERS = """
    @hookimpl
    def register_tokenizers():
        yield TokenizerSpec(name="wide", target=f"{__name__}:load")

    from sglang_plug import Tokenizer

    class Wide(Tokenizer):
        vocab_size = 5000
        eos_token_ids = ()
        def chat_template(self, tools=False): return None

    def load(source):
        tokenizer = Wide()
        tokenizer.source = source
        return tokenizer
"""


def config(**options: Any) -> ServerConfig:
    own = {name: options.pop(name) for name in ("tokenizer_mode", "tokenizer_path") if name in options}
    return ServerConfig(engine=EngineConfig(model=ModelOptions(path="org/letters", **own)), **options)


DEPLOYMENTS = """
    @hookimpl
    def register_deployments():
        yield DeploymentSpec(name="never", target=f"{__name__}:deploy")

    def deploy(launch):
        raise AssertionError("an engine is made")
"""


@pytest.fixture
def plugins(discover: Any, plugin_file: Any) -> Any:
    files = {"watcher": OBSERVERS, "wide": TOKENIZERS, "never": DEPLOYMENTS}
    return discover(*(plugin_file(name, source) for name, source in files.items()))


@pytest.fixture
async def info(scripted: Any, plugins: Any, tmp_path: Any) -> Mapping[str, Any]:
    fingerprint = [list(plugin) for plugin in plugins.fingerprint]
    return {**await scripted.start(), "fingerprint": fingerprint, "checkpoint_path": str(tmp_path)}


class Starting:
    """An engine client that starts when the event ``until`` is set, or never."""

    def __init__(self, until: threading.Event) -> None:
        self.until, self.starting = until, False

    async def start(self) -> Mapping[str, Any]:
        self.starting = True
        try:
            while not self.until.is_set():
                await asyncio.sleep(0.01)
        finally:
            self.starting = False
        return {"device": "cpu"}


async def started(config: ServerConfig, plugins: Any, engine: Starting) -> Mapping[str, Any]:
    async with asyncio.timeout(240.0):
        return await start_engine(engine, EarlyTokenizer(config, plugins))  # type: ignore[arg-type]


async def test_the_tokenizer_is_imported_while_the_engine_starts() -> None:
    imported = threading.Event()
    component = SimpleNamespace(check=imported.set)
    plugins = SimpleNamespace(resolve=lambda kind, name, facts: component)
    assert await started(config(), plugins, Starting(imported)) == {"device": "cpu"}


BROKEN_TOKENIZERS = """
    @hookimpl
    def register_tokenizers():
        yield TokenizerSpec(name="broken", target="no_such_module:Tokenizer")
        yield TokenizerSpec(name="refusing", target=f"{__name__}:refuse")

    def refuse(source):
        raise ValueError(f"nothing to read in {source.path.name}")
"""


@pytest.mark.parametrize(
    ("mode", "message"),
    [("broken", "tokenizer 'broken' .*could not be imported"), ("refusing", "'refusing' .*nothing to read in folder")],
)
async def test_what_is_wrong_with_the_tokenizer_is_told_before_the_engine_has_started(
    mode: str, message: str, discover: Any, plugin_file: Any, tmp_path: Any
) -> None:
    plugins = discover(plugin_file("broken", BROKEN_TOKENIZERS))
    (tmp_path / "folder").mkdir()
    engine = Starting(threading.Event())
    with pytest.raises(ConfigError, match=message):
        await started(config(tokenizer_mode=mode, tokenizer_path=str(tmp_path / "folder")), plugins, engine)
    assert not engine.starting


async def test_the_tokenizer_is_loaded_once(discover: Any, plugin_file: Any, info: Any, tmp_path: Any) -> None:
    plugins = discover(plugin_file("wide", TOKENIZERS))
    ready = threading.Event()
    ready.set()
    chosen = config(tokenizer_mode="wide", tokenizer_path=str(tmp_path))
    early = EarlyTokenizer(chosen, plugins)
    await start_engine(Starting(ready), early)  # type: ignore[arg-type]
    first = load_tokenizer(chosen, plugins, info, early)
    assert load_tokenizer(chosen, plugins, info, early) is first
    assert load_tokenizer(chosen, plugins, info) is not first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer_mode": "wied"}, "no tokenizer named 'wied'.*did you mean 'wide'"),
        ({"tool_call_parser": "hermse"}, "no tool-parser named 'hermse'"),
        ({"observers": ("wacher",)}, "no observer named 'wacher'.*did you mean 'watcher'"),
        ({"observers": ("no-observer",)}, "observer 'no-observer' .*must be a subclass of Observer"),
    ],
)
def test_components_that_cannot_be_are_told_before_the_engine_is_started(
    options: dict[str, Any], message: str, plugins: Any
) -> None:
    with pytest.raises(ConfigError, match=message):
        serve(config(port=0, deployment="never", **options), plugins)


def test_observers_that_are_on_by_default_or_named(plugins: Any) -> None:
    assert set(load_observers(config(), plugins)) == {"prometheus", "log"}
    assert set(load_observers(config(observers=("watcher",)), plugins)) == {"prometheus", "log", "watcher"}


def test_observers_that_cannot_be(plugins: Any) -> None:
    with pytest.raises(ConfigError, match="'wacher'.*did you mean 'watcher'"):
        load_observers(config(observers=("wacher",)), plugins)
    with pytest.raises(ConfigError, match="no-observer"):
        load_observers(config(observers=("no-observer",)), plugins)


async def test_tokenizers(plugins: Any, info: Any, caplog: pytest.LogCaptureFixture, tmp_path: Any) -> None:
    chosen = config(tokenizer_mode="wide", chat_template="{{ x }}")
    with caplog.at_level(logging.WARNING):
        tokenizer: Any = load_tokenizer(chosen, plugins, info)
    assert (tokenizer.source.path, tokenizer.source.chat_template) == (tmp_path, "{{ x }}")
    assert "5000 tokens" in caplog.text and "only 1000" in caplog.text
    with pytest.raises(ConfigError, match="there is no such folder or file"):
        load_tokenizer(config(tokenizer_mode="wide", tokenizer_path=str(tmp_path / "none")), plugins, info)
    with pytest.raises(ConfigError, match="did you mean 'wide'"):
        load_tokenizer(config(tokenizer_mode="wied"), plugins, info)


async def test_assembled_observers_see_the_start_and_every_step(plugins: Any, scripted: Any, info: Any) -> None:
    chosen = config(tokenizer_mode="wide", observers=("watcher",), served_model_name="mine")
    engine = assemble(chosen, plugins, scripted, info)
    await start_components(engine, plugins)
    watcher: Any = engine.server.observers["watcher"]
    assert watcher.info["served_model_name"] == "mine"
    assert watcher.info["log_interval"] == chosen.engine.schedule.log_interval
    names = ("time", "seconds", "prefill_sequences", "prefill_tokens", "cached_tokens", "decode_sequences", "running")
    names += ("waiting", "used_slots", "cached_slots", "free_slots", "capacity", "retracted")
    stats = StepStats(**dict.fromkeys(names, 0))
    for listener in scripted.listeners:
        listener(stats)
    assert watcher.steps == [stats]
    assert engine.server.plugins["components"]


async def test_an_engine_with_other_plugins_is_refused(plugins: Any, scripted: Any, info: Any) -> None:
    other = [*info["fingerprint"], ["intruder", "intruder-dist", "1.0"]]
    with pytest.raises(ConfigError, match="the engine sees other plugins than the server: intruder intruder-dist 1.0"):
        assemble(config(skip_tokenizer_init=True), plugins, scripted, {**info, "fingerprint": other})


async def test_assembled_without_a_tokenizer(plugins: Any, scripted: Any, info: Any) -> None:
    assert not assemble(config(skip_tokenizer_init=True), plugins, scripted, info).encoder.has_tokenizer


def test_a_taken_port_is_told_before_anything_is_loaded(plugins: Any) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: .*; choose another --port"):
            serve(config(port=port), plugins)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer_path": "no/such"}, "--tokenizer-path 'no/such': there is no such folder"),
        ({"chat_template": "no/such.jinja"}, "--chat-template 'no/such.jinja' is neither a Jinja template nor a file"),
        ({"chat_template": ""}, "--chat-template '' is neither a Jinja template nor a file"),
        (
            {"storage": StorageConfig(file_storage_path=f"{__file__}/files")},
            "--file-storage-path '.*' is not a folder that this user may write to or make",
        ),
        (
            {"media_sources": MediaSourcesConfig(folder="no/such")},
            "--allowed-local-media-path 'no/such' is not a folder",
        ),
        (
            {"media_sources": MediaSourcesConfig(domains=("http://a",))},
            "--allowed-media-domains: 'http://a' is not a host",
        ),
        ({"tenant_isolation": True}, "--tenant-isolation tells callers apart by their keys; set them with --api-key"),
        ({"allow_update_from": (".", "no/such")}, "--allow-update-from 'no/such' is not a folder"),
        ({"media_sources": MediaSourcesConfig(networks=("a",))}, "--allowed-media-networks: 'a' does not appear to be"),
    ],
)
def test_paths_that_are_none_are_told_before_anything_is_loaded(
    options: dict[str, Any], message: str, plugins: Any
) -> None:
    with pytest.raises(ConfigError, match=message):
        serve(config(port=0, deployment="never", **options), plugins)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"revision": "main", "path": "."}, "--revision main has no effect: --model-path . is a local folder"),
        ({"revision": "main"}, "--revision main has no effect: there is no --model-path"),
        ({"revision": "main", "path": "owner/name"}, ""),
        ({"path": "."}, ""),
    ],
)
def test_a_revision_of_what_has_none(model: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture) -> None:
    check_paths(ServerConfig(engine=EngineConfig(model=ModelOptions(**model))))
    assert caplog.text.count("has no effect") == bool(words) and words in caplog.text


@pytest.mark.parametrize("path", ["a=/nope", "/nope"])
def test_folders_of_adapters_are_looked_for_before_weights_are_loaded(path: str) -> None:
    with pytest.raises(ConfigError, match=f"--lora-paths {path}: there is no folder '/nope'"):
        check_paths(ServerConfig(engine=EngineConfig(adapters=AdapterOptions(paths=(path,)))))


def test_a_media_processor_of_a_model_of_text() -> None:
    named = ServerConfig(engine=EngineConfig(model=ModelOptions(media_processor="llava")))
    text: Any = {"architecture": "LlamaForCausalLM", "inputs": ["text"]}
    with pytest.raises(ConfigError, match="'llava' has nothing to do: LlamaForCausalLM takes text only"):
        check_media_processor(named, text)
    check_media_processor(ServerConfig(), text)
    check_media_processor(named, {**text, "inputs": ["text", "image"]})


def test_an_address_that_is_none(plugins: Any) -> None:
    with pytest.raises(ConfigError, match="cannot listen on 256.0.0.1:0: .*; choose another --host"):
        serve(config(host="256.0.0.1", port=0), plugins)


@pytest.fixture
def start_server() -> Iterator[Callable[..., ThreadServer]]:
    """Yield a function that starts servers in this process, which end after the test."""
    servers: list[ThreadServer] = []

    def start(*flags: str) -> ThreadServer:
        servers.append(ThreadServer(with_defaults(flags)))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def test_what_was_loaded_is_ignored_by_the_garbage_collector(capsys: pytest.CaptureFixture[str]) -> None:
    """Loaded objects are frozen, because a full collection, which a large body causes, takes tenths of a second."""
    announce = inspect.signature(serve).parameters["announce"].default
    before = gc.get_freeze_count()
    loaded = [[number] for number in range(1000)]
    announce("at http://host:1")
    assert gc.get_freeze_count() - before > len(loaded)
    assert capsys.readouterr().out == "at http://host:1\n"


@pytest.mark.parametrize("has_page", [True, False])
def test_the_ready_text_says_where_to_go_on(start_server: Callable[..., ThreadServer], has_page: bool) -> None:
    blocked = () if has_page else ("--block-plugin", "route:playground")
    server = start_server("--served-model-name", "demo", "--api-key", "key", *blocked)
    first, *others = server.ready_text.splitlines()
    assert first == f"sglang-plug serves demo at {server.url}", "scripts take the address from this line"
    assert (f"Open {server.url}/ in a browser." in others) == has_page
    assert any(f"curl -s {server.url}/v1/chat/completions" in line and "YOUR_KEY" in line for line in others)
