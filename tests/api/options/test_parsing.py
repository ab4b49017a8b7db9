"""One table turns flags, environment and file into the configuration."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sglang_plug import AUTO, ConfigError, PluginError, PluginOptions, Plugins
from sglang_plug.engine.loading import device, kv_dtype
from sglang_plug.plugins.declaration import hook_names, spec_types
from sglang_plug.plugins.flags import KEYS, plugin_flags
from sglang_plug.system.command_line import Parser
from sglang_plug_api.options import option_table
from sglang_plug_api.options.config import ServerConfig
from sglang_plug_api.options.option import Option, config_value
from sglang_plug_api.options.option_table import by_key
from sglang_plug_api.options.option_table import options as all_options
from sglang_plug_api.options.parsing import add_arguments, misspelt_variables, server_config
from tests.parser_flags import actions_of, flags_of

GOLDEN_FLAGS = Path(__file__).with_name("golden_flags.txt")
FIELDS = [option for option in all_options() if option.field is not None]
NOT_OPTIONS = {
    "engine.plugins",
    "engine.schedule.caller_weights",
    "engine.parallel.replica",
    "engine.parallel.replicas",
}
"""Fields of the configuration that are derived from other options."""


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in all_options():
        monkeypatch.delenv(option.variable, raising=False)


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Plugins:
    """The built-in plugins, and three components of each kind that an option names."""
    kinds = sorted({option.component for option in all_options() if option.component})
    file = tmp_path_factory.mktemp("plugins") / "samples.py"
    hooks = {of.kind: hook for hook in hook_names() if hook.startswith("register_") for of in spec_types(hook)}
    names = {of.kind: of.__name__ for hook in set(hooks.values()) for of in spec_types(hook)}
    source = "from sglang_plug.plugins.specs import *\nfrom sglang_plug import hookimpl\n"
    for hook in sorted({hooks[kind] for kind in kinds}):
        specs = [names[kind] for kind in kinds if hooks[kind] == hook]
        source += (
            f"@hookimpl\ndef {hook}():\n    for spec in ({', '.join(specs)},):\n"
            "        for name in ('sample1', 'sample2', 'sample3'):\n"
            "            yield spec(name=name, target='nowhere:nothing')\n"
        )
    file.write_text(source)
    return Plugins.discover(PluginOptions(files=(str(file),), strict=True))


def parser_of(plugins: Plugins) -> Parser:
    parser = Parser(prog="sglang-plug serve", parents=[plugin_flags()])
    add_arguments(parser, plugins)
    return parser


def configured(plugins: Plugins, *argv: str) -> ServerConfig:
    return server_config(parser_of(plugins).parse_args(list(argv)), plugins)


def sample(option: Option, number: int) -> Any:
    """Return a valid value of an option; number 1 differs from the default, 2 from 1, and 3 from 2."""
    if option.choices:
        others = [choice for choice in option.choices if choice != option.default]
        return [*others, option.default][(number - 1) % len(option.choices)]
    if option.component:
        return (f"sample{number}",) if option.kind is tuple else f"sample{number}"
    name = f"value{number}"
    values = {int: 40 + number, float: number / 8, bool: True, dict: {"seed": number}, str: name, tuple: (name,)}
    return values[option.kind]


def as_text(value: Any) -> str:
    if isinstance(value, dict | bool):
        return json.dumps(value)
    return ",".join(value) if isinstance(value, tuple) else str(value)


def as_argument(option: Option, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [option.flags[0] if value else option.flags[0].replace("--", "--no-", 1)]
    return [option.flags[0], as_text(value)]


def write_file(folder: Path, values: dict[str, Any]) -> list[str]:
    file = folder / "server.yaml"
    file.write_text(yaml.safe_dump(json.loads(json.dumps(values))))
    return ["--config", str(file)]


def leaves(config: Any, path: str = "") -> Iterator[str]:
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if dataclasses.is_dataclass(value) and f"{path}{item.name}" not in NOT_OPTIONS:
            yield from leaves(value, f"{path}{item.name}.")
        elif f"{path}{item.name}" not in NOT_OPTIONS:
            yield f"{path}{item.name}"


def test_every_field_has_exactly_one_option() -> None:
    assert sorted(option.field or "" for option in FIELDS) == sorted(leaves(ServerConfig()))


def test_flags_are_the_golden_list(plugins: Plugins) -> None:
    """The flags equal the golden list, because renamed or removed options break scripts of users."""
    flags = sorted(flags_of(parser_of(plugins)))
    assert "\n".join(flags) + "\n" == GOLDEN_FLAGS.read_text()


def test_keys_are_unambiguous() -> None:
    keys = [key for option in all_options() for key in option.keys]
    assert len(keys) == len(set(keys))
    assert not KEYS & set(keys)


def test_nothing_given_is_the_default(plugins: Plugins) -> None:
    assert configured(plugins) == dataclasses.replace(
        ServerConfig(), engine=dataclasses.replace(ServerConfig().engine, plugins=plugins.options)
    )


@pytest.mark.parametrize("option", FIELDS, ids=lambda option: option.key)
def test_command_line_before_environment_before_file(
    option: Option, plugins: Plugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert option.field is not None
    first, second, third = (sample(option, number) for number in (1, 2, 3))
    if option.kind is bool:
        first, second, third = True, False, True
    config = write_file(tmp_path, {option.key: first})
    assert first != option.default
    assert config_value(configured(plugins, *config), option.field) == first
    monkeypatch.setenv(option.variable, as_text(second))
    assert config_value(configured(plugins, *config), option.field) == second
    argument = as_argument(option, third)
    assert config_value(configured(plugins, *config, *argument), option.field) == third
    monkeypatch.setenv(option.variable, "")
    assert config_value(configured(plugins, *config), option.field) == first, "an empty variable is not set"


IMPLIED = {"skip_tokenizer_init": ("engine.backends.grammar",)}
"""Fields that an option changes besides its own: without a tokenizer there can be no grammar backend."""


@pytest.mark.parametrize("option", FIELDS, ids=lambda option: option.key)
def test_an_option_changes_its_own_field_only(option: Option, plugins: Plugins) -> None:
    changed = configured(plugins, *as_argument(option, sample(option, 1)))
    different = [path for path in leaves(changed) if config_value(changed, path) != config_value(ServerConfig(), path)]
    assert different == [*IMPLIED.get(option.key, ()), option.field]


@pytest.mark.parametrize("key", sorted(by_key()))
def test_every_name_works_in_a_file_with_dashes(key: str, plugins: Plugins, tmp_path: Path) -> None:
    option = by_key()[key]
    config = configured(plugins, *write_file(tmp_path, {key.replace("_", "-"): sample(option, 1)}))
    if option.field is not None:
        assert config_value(config, option.field) == sample(option, 1)


def test_the_file_keeps_its_types(plugins: Plugins, tmp_path: Path) -> None:
    values = {"api_key": 1234, "observer": ["sample1", "sample2"], "port": "8000", "revision": None}
    config = configured(plugins, *write_file(tmp_path, values))
    assert (config.api_keys, config.observers, config.port) == (("1234",), ("sample1", "sample2"), 8000)
    assert config.engine.model.revision is None


def test_the_model_may_be_positional(plugins: Plugins) -> None:
    assert configured(plugins, "org/name").engine.model.path == "org/name"
    assert configured(plugins, "--model", "a").engine.model.path == "a"
    assert configured(plugins, "a", "--model-path", "a").engine.model.path == "a"
    with pytest.raises(ConfigError, match="two models: MODEL is 'a', --model-path is 'b'"):
        configured(plugins, "a", "--model-path", "b")


def test_observers_add_up(plugins: Plugins) -> None:
    assert configured(plugins, "--observer", "sample1", "--observer", "sample3,sample2").observers == (
        "sample1",
        "sample3",
        "sample2",
    )


def test_several_api_keys(plugins: Plugins, monkeypatch: pytest.MonkeyPatch) -> None:
    assert configured(plugins, "--api-key", "a,b", "--api-key=c").api_keys == ("a", "b", "c")
    with pytest.raises(ConfigError, match="--api-key: must not be empty"):
        configured(plugins, "--api-key", "")
    monkeypatch.setenv("SGLANG_PLUG_API_KEY", "d,e")
    assert configured(plugins).api_keys == ("d", "e")


def test_metrics_need_no_switch(plugins: Plugins) -> None:
    assert configured(plugins, "--enable-metrics") == configured(plugins)


def test_disable_radix_cache_means_no_prefix_cache(
    plugins: Plugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cache(*argv: str) -> str:
        return configured(plugins, *argv).engine.cache.prefix_cache

    assert cache("--disable-radix-cache") == "none"
    assert cache("--disable-radix-cache", "--prefix-cache", "none") == "none"
    assert cache("--no-disable-radix-cache", "--prefix-cache", "radix") == "radix"
    config = write_file(tmp_path, {"disable_radix_cache": True})
    assert cache(*config) == "none"
    assert cache(*config, "--prefix-cache", "radix") == "radix"
    monkeypatch.setenv("SGLANG_PLUG_PREFIX_CACHE", "radix")
    assert cache("--disable-radix-cache") == "none"
    with pytest.raises(ConfigError, match="--disable-radix-cache and --prefix-cache 'radix' contradict each other"):
        cache("--disable-radix-cache", "--prefix-cache", "radix")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--port=65536", "--port: must be less than or equal to 65535, got '65536'"),
        ("--port=-1", "--port: must be greater than or equal to 0, got '-1'"),
        ("--port=http", "--port: must be a valid integer"),
        ("--page-size=0", "--page-size: must be greater than or equal to 1"),
        ("--max-total-tokens=1.5", "--max-total-tokens: must be a valid integer"),
        ("--chunked-prefill-size=-2", "--chunked-prefill-size: must be greater than or equal to -1"),
        ("--mem-fraction-static=1", "--mem-fraction-static: must be less than 1"),
        ("--mem-fraction-static=0", "--mem-fraction-static: must be greater than 0"),
        ("--mem-fraction-static=nan", "--mem-fraction-static: must be"),
        ("--drain-timeout=inf", "--drain-timeout: must be a finite number"),
        ("--log-level=loud", "--log-level: must be 'debug', 'info', 'warning', 'error' or 'critical', got 'loud'"),
        ("--json-model-override-args=[1]", "--json-model-override-args: must be a JSON object, got '[1]'"),
        ("--preferred-sampling-params={", "--preferred-sampling-params: must be a JSON object"),
        ("--admin-api-key=", "--admin-api-key: must not be empty, got ''"),
        ("--model-path=", "--model-path: must not be empty"),
        ('--preferred-sampling-params={"n": 0}', "--preferred-sampling-params: n: must be greater than or equal to 1"),
    ],
)
def test_a_wrong_value_names_its_flag(argument: str, message: str, plugins: Plugins) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(plugins, argument)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_wrong_value_names_its_source(plugins: Plugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write_file(tmp_path, {"port": True, "page_size": 1})
    with pytest.raises(ConfigError) as caught:
        configured(plugins, *config)
    assert str(caught.value) == f"port (in {config[1]}): must be a number, got True"
    monkeypatch.setenv("SGLANG_PLUG_PORT", "many")
    with pytest.raises(ConfigError, match=r"^SGLANG_PLUG_PORT: must be a valid integer"):
        configured(plugins, *config)


def test_an_unknown_key_of_the_file_is_refused(plugins: Plugins, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown key 'page_sizes'; did you mean 'page_size'"):
        configured(plugins, *write_file(tmp_path, {"page-sizes": 1}))
    with pytest.raises(ConfigError, match="'eviction_policy' is given twice"):
        configured(plugins, *write_file(tmp_path, {"eviction_policy": "lru", "radix_eviction_policy": "lru"}))


@pytest.mark.parametrize(
    "option", [option for option in all_options() if option.component], ids=lambda option: option.key
)
def test_an_unknown_component_names_the_nearest(option: Option, plugins: Plugins) -> None:
    with pytest.raises(PluginError) as caught:
        configured(plugins, option.flags[0], "sampel3")
    assert str(caught.value).startswith(f"{option.flags[0]}: no {option.component} named 'sampel3'; did you mean")


def test_an_unknown_option_is_refused(plugins: Plugins) -> None:
    with pytest.raises(ConfigError, match="unknown option '--enable-teleport'"):
        configured(plugins, "--enable-teleport")
    with pytest.raises(ConfigError, match="unknown option '--page-sise'; did you mean '--page-size'"):
        configured(plugins, "--page-sise=3")


def test_help_names_the_owner_of_a_strange_component(plugins: Plugins, capsys: pytest.CaptureFixture[str]) -> None:
    help_of = {action.dest: action.help or "" for action in actions_of(parser_of(plugins))}
    assert "one of: fifo, lfu, lru, priority, sample1 (" in help_of["eviction_policy"]
    assert help_of["eviction_policy"].endswith("default: lru")
    assert "one of: auto, none, radix, sample1 (" in help_of["prefix_cache"]
    with pytest.raises(SystemExit):
        parser_of(plugins).parse_args(["--help"])
    assert "--radix-eviction-policy" in capsys.readouterr().out


def test_a_namespace_without_config_is_enough(plugins: Plugins) -> None:
    assert server_config(argparse.Namespace(port="1"), plugins).port == 1


def test_dtypes_are_those_that_the_engine_has() -> None:
    assert sorted(option_table.DTYPES) == sorted([AUTO, *device.DTYPES])
    assert sorted(option_table.KV_DTYPES) == sorted([AUTO, *kv_dtype.NAMES, *kv_dtype.ALIASES])


@pytest.mark.parametrize("flag", ["--dtype", "--kv-cache-dtype", "--task"])
def test_a_value_that_is_no_choice_is_refused_before_the_engine_starts(flag: str, plugins: Plugins) -> None:
    with pytest.raises(ConfigError, match=f"{flag}: must be 'auto', .*, got 'int3'"):
        configured(plugins, flag, "int3")


def test_what_kubernetes_sets_for_a_service_of_our_name(plugins: Plugins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_PLUG_PORT", "tcp://10.0.0.1:30000")
    with pytest.raises(
        ConfigError, match="^SGLANG_PLUG_PORT: .*; Kubernetes sets this variable for a Service: .*Links"
    ):
        configured(plugins)


def test_algorithms_may_be_in_capitals(plugins: Plugins) -> None:
    def algorithm(name: str) -> str:
        return configured(plugins, "--speculative-algorithm", name).engine.speculative.algorithm

    assert algorithm("NGRAM") == algorithm("ngram") == "ngram"
    assert algorithm("NONE") == "none"
    with pytest.raises(ConfigError, match="--speculative-algorithm: no drafter named 'eagle'"):
        algorithm("EAGLE")


@pytest.mark.parametrize(
    ("name", "policy"),
    [("round_robin", "round-robin"), ("total_tokens", "least-tokens"), ("round-robin", "round-robin")],
)
@pytest.mark.parametrize("flag", ["--load-balance-method", "--routing-policy"])
def test_routing_policies_may_have_the_names_of_sglang(plugins: Plugins, flag: str, name: str, policy: str) -> None:
    assert configured(plugins, flag, name).routing_policy == policy


def test_embeddings_of_a_model_for_any_task(plugins: Plugins) -> None:
    assert configured(plugins, "--is-embedding", "--task", "auto").engine.model.task == "embed"


def test_misspelt_variables_are_named() -> None:
    names = ("SGLANG_PLUG_API_KEYS", "SGLANG_PLUG_API_KEY", "SGLANG_PLUG_SERVICE_HOST", "SGLANG_PLUG_PORT_30000_TCP")
    names += ("SGLANG_PLUG_CONFIG", "SGLANG_PLUG_STRICT_PLUGIN", "HOME", "SGLANG_PLUG_PLUGINS_DIR")
    assert misspelt_variables(dict.fromkeys(names, "x")) == [
        "SGLANG_PLUG_PLUGINS_DIR has no effect; use --plugins-dir or the configuration file",
        "SGLANG_PLUG_API_KEYS is not an option; did you mean SGLANG_PLUG_API_KEY?",
        "SGLANG_PLUG_STRICT_PLUGIN is not an option; did you mean SGLANG_PLUG_STRICT_PLUGINS?",
    ]
