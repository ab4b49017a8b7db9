"""Command lines of other servers get errors that name the options of this server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sglang_plug import Plugins
from sglang_plug.config import ConfigError
from sglang_plug.plugins.flags import plugin_flags
from sglang_plug.system.command_line import Parser
from sglang_plug_api import Engine
from sglang_plug_api.options.option_aliases import EXACT, FAMILIES, alias_hint
from sglang_plug_api.options.option_table import options
from sglang_plug_api.options.parsing import add_arguments, server_config
from tests.parser_flags import flags_of


@pytest.mark.parametrize(
    ("flag", "answer"),
    [
        ("--nnodes", "one model must fit on one machine"),
        ("--nnodes", "one model must fit on one machine"),
        ("--max-model-len", "use --context-length"),
        ("--gpu-memory-utilization", "use --mem-fraction-static"),
        ("--max_num_seqs", "use --max-running-requests"),
        ("--enable-prefix-caching", "it is on by default; --disable-radix-cache switches it off"),
        ("--no-enable-prefix-caching", "--disable-radix-cache switches it off"),
        ("--trust-remote-code", "never run"),
        ("--speculative-draft-model-path", "use --speculative-algorithm"),
        ("--max-lora-rank", "adapters of any rank"),
        ("--hicache-ratio", "use --kv-store host,disk"),
        ("--enable-priority-scheduling", "use --schedule-policy priority"),
        ("--soft-watchdog-timeout", "use --watchdog-timeout"),
        ("--log-requests-level", "use --log-requests"),
        ("--enable-piecewise-cuda-graph", "use --piecewise-cuda-graph-max-tokens"),
        ("--piecewise-cuda-graph-tokens", "use --piecewise-cuda-graph-max-tokens"),
        ("--show-time-cost", "/metrics"),
        ("--bucket-time-to-first-token", "/metrics"),
        ("--modelopt-quant", "use --quantization"),
        ("--stream-output", "incremental"),
        ("--pp-max-micro-batch-size", "one model must fit on one machine"),
    ],
)
def test_an_option_of_another_server_is_answered(flag: str, answer: str) -> None:
    parser = Parser(prog="serve")
    add_arguments(parser, Plugins.discover())
    with pytest.raises(ConfigError) as caught:
        parser.parse_args([flag, "2"])
    assert str(caught.value).startswith(f"unknown option {flag!r}: ")
    assert answer in str(caught.value)
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("flag", "full"),
    [
        ("--max-total-token", "'--max-total-tokens'?"),
        ("--context-len", "'--context-length'?"),
        ("--context_len", "'--context-length'?"),
        ("--mem-fraction", "'--mem-fraction-static'?"),
        ("--sched", "'--schedule-policy'?"),
        ("--disable-cuda", "'--disable-cuda-graph'?"),
        ("--tool-call-pars", "'--tool-call-parser'?"),
        ("--file", "'--file-storage-path'?"),
        ("--max-running-req", "'--max-running-requests'?"),
    ],
)
def test_an_abbreviation_is_answered_with_the_full_name(flag: str, full: str) -> None:
    parser = Parser(prog="serve", parents=[plugin_flags()])
    add_arguments(parser, Plugins.discover())
    for arguments in ([flag, "2"], [f"{flag}=2"]):
        with pytest.raises(ConfigError) as caught:
            parser.parse_args(arguments)
        assert str(caught.value).startswith(f"unknown option {flag!r}; did you mean ")
        assert full in str(caught.value)


@pytest.mark.parametrize(
    ("flag", "answer"),
    [
        ("--trust-remote", "for --trust-remote-code, code that comes with a checkpoint"),
        ("--trust_remote", "for --trust-remote-code, code that comes with a checkpoint"),
        ("--max-model", "for --max-model-len, use --context-length"),
        ("--gpu-mem", "for --gpu-memory-utilization, use --mem-fraction-static"),
        ("--pipeline-par", "for --pipeline-parallel, one model must fit"),
    ],
)
def test_an_abbreviation_of_another_servers_option_is_answered(flag: str, answer: str) -> None:
    parser = Parser(prog="serve", parents=[plugin_flags()])
    add_arguments(parser, Plugins.discover())
    with pytest.raises(ConfigError) as caught:
        parser.parse_args([flag, "2"])
    assert str(caught.value).startswith(f"unknown option {flag!r}: {answer}")


def test_an_abbreviation_may_stand_for_several_options() -> None:
    assert "max-model-len" in EXACT and "max-mamba-cache-size" in EXACT
    assert alias_hint("--max-m") is None
    assert alias_hint("--tru") is None
    assert alias_hint("--log-level-h") is not None
    assert alias_hint("--log-level-h", ["--log-level-height"]) is None


def test_every_abbreviation_that_stands_for_one_option_names_it() -> None:
    parser = Parser(prog="serve", parents=[plugin_flags()])
    add_arguments(parser, Plugins.discover())
    names = [name for option in options() for name in option.flags if name.startswith("--")]
    for name in names:
        short = name[:-1]
        if short in names or alias_hint(short) is not None or sum(name.startswith(short) for name in names) > 1:
            continue
        with pytest.raises(ConfigError) as caught:
            parser.parse_args([short, "2"])
        assert repr(name) in str(caught.value)


def test_a_typo_still_gets_the_nearest_option() -> None:
    parser = Parser(prog="serve")
    add_arguments(parser, Plugins.discover())
    with pytest.raises(ConfigError, match="unknown option '--context-lenght'; did you mean '--context-length'?"):
        parser.parse_args(["--context-lenght", "2"])


def test_a_key_of_a_file_is_answered_too(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("pipeline-parallel-size: 2\n")
    parser = Parser(prog="serve", parents=[plugin_flags()])
    add_arguments(parser, Plugins.discover())
    with pytest.raises(ConfigError, match="unknown key .pipeline_parallel_size.: one model must fit on one machine"):
        server_config(parser.parse_args(["--config", str(file)]), Plugins.discover())


def test_so_is_an_argument_of_the_offline_engine() -> None:
    with pytest.raises(ConfigError, match="Engine has no option 'pp_size': one model must fit on one machine.*; see "):
        Engine(pp_size=2)
    with pytest.raises(ConfigError, match="no option 'contxt_length'; did you mean 'context_length'"):
        Engine(contxt_length=2)


@pytest.mark.parametrize("option", ["plugin", "plugins_dir", "block_plugin", "set"])
def test_an_option_about_plugins_is_a_part_of_another_argument_of_the_offline_engine(option: str) -> None:
    with pytest.raises(ConfigError, match=f"Engine takes the option '{option}' as a part of 'plugins', see PluginOpt"):
        Engine(**{option: ["x"]})


def test_every_option_that_an_answer_names_is_there() -> None:
    ours = {flag for option in options() for flag in option.flags} | flags_of(plugin_flags())
    named = {flag for answer in (*EXACT.values(), *FAMILIES.values()) for flag in re.findall(r"--[a-z-]+[a-z]", answer)}
    assert named
    assert named <= ours


def test_no_option_of_ours_is_called_foreign() -> None:
    assert [flag for option in options() for flag in option.flags if flag.lstrip("-") in EXACT] == []


def test_what_nobody_knows_has_no_answer() -> None:
    assert alias_hint("--colour") is None
