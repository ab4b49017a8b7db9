"""Tests of the actions ``list``, ``show``, ``check`` and ``doctor``, which report plugins and their faults."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

import pytest

from sglang_plug import Plugins, StepExtensionSpec
from sglang_plug.__main__ import main

GOOD = """
    from dataclasses import dataclass
    @dataclass
    class Knobs:
        size: int = 3
    class Mine:
        def __init__(self, settings): ...
        def eviction_priority(self, node): return 0
    @hookimpl
    def register_cache_policies():
        yield EvictionSpec(name="mine", target=f"{__name__}:Mine", settings=f"{__name__}:Knobs", summary="my own")
        yield EvictionSpec(name="needy", target=f"{__name__}:Mine", needs=("a_library_nobody_has",))
"""
CLASHING = GOOD.replace('name="mine"', 'name="lru"')
BROKEN = "raise RuntimeError('out of order')"
LOST = """
    @hookimpl
    def register_models():
        yield ModelSpec(name="Lost", target="nowhere:Lost")
"""
HEAVY = "import numpy\n@hookimpl\ndef register_models():\n    return []\n"


def test_list_shows_owner_and_reason(plugin_file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "list", "--plugin", plugin_file("good", GOOD)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["KIND", "NAME", "PLUGIN", "DISTRIBUTION", "STATUS"]
    assert ["prefix-cache", "radix", "prefix_cache"] in [line[:3] for line in lines]
    needy = next(line for line in lines if line[1] == "needy")
    assert " ".join(needy).endswith("unavailable: not installed: a_library_nobody_has")


def test_list_as_json(plugin_file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    file = plugin_file("good", GOOD)
    assert main(["plugins", "list", "--json", "--kind", "eviction", "--plugin", file]) == 0
    table = json.loads(capsys.readouterr().out)
    assert {row["kind"] for row in table["components"]} == {"eviction"}
    assert [row["distribution"] for row in table["components"] if row["name"] == "mine"] == [file]
    assert "prefix_cache" in [row["name"] for row in table["plugins"]]


def test_a_broken_plugin_does_not_break_the_list(plugin_file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "list", "--plugin", plugin_file("broken", BROKEN), "--block-plugin", "demo"]) == 0
    output = capsys.readouterr().out
    assert output.splitlines()[-1].endswith("failed: RuntimeError: out of order")
    assert "blocked: demo (sglang-plug)" in output
    assert " radix " in output
    assert "\x1b" not in output


class Terminal(io.StringIO):
    """An output that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_failures_are_red_on_a_terminal(plugin_file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["plugins", "list", "--plugin", plugin_file("broken", BROKEN)]
    monkeypatch.delenv("NO_COLOR", raising=False)
    with contextlib.redirect_stdout(Terminal()) as output:
        assert main(argv) == 0
    assert "\x1b[31mplugin 'broken'" in output.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    with contextlib.redirect_stdout(Terminal()) as output:
        assert main(argv) == 0
    assert "plugin 'broken'" in output.getvalue() and "\x1b" not in output.getvalue()


def test_show_a_component(plugin_file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    file = plugin_file("good", GOOD)
    for key in ("mine", "eviction:mine"):
        assert main(["plugins", "show", key, "--plugin", file]) == 0
        output = capsys.readouterr().out
        assert output.startswith("eviction:mine\n")
        assert "--set mine.size=int (default 3)" in output
        assert file in output
        assert "my own" in output


def test_the_order_of_step_extensions_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "list", "--kind", "step-extension"]) == 0
    line = capsys.readouterr().out.partition("called in this order: ")[2].splitlines()[0]
    order = line.split(", ")
    specs = {item.spec.name: item.spec for item in Plugins.discover().all("step-extension")}
    assert set(order) == specs.keys()
    for name, spec in specs.items():
        assert isinstance(spec, StepExtensionSpec)
        assert all(order.index(other) < order.index(name) for other in spec.after if other in order)
    assert main(["plugins", "show", f"step-extension:{order[0]}"]) == 0
    shown = capsys.readouterr().out
    assert f"  order         [{order[0]}]\n                {order[1]}\n" in shown
    assert all(len(line.split(maxsplit=1)) == 2 for line in shown.partition("  order ")[0].splitlines()[1:]), shown


ORDERED = """
    @hookimpl
    def register_step_extensions():
        yield StepExtensionSpec(name="mine", target="builtins:dict", before=("structured_outputs",), after=("qqqqqq",))
"""


def test_unknown_names_in_the_order_of_step_extensions_are_reported(
    plugin_file: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    file = plugin_file("ordered", ORDERED)
    for action in (["check", "ordered"], ["doctor"]):
        assert main(["plugins", *action, "--plugin", file]) == 1
        output = capsys.readouterr().out
        problem = "before= names 'structured_outputs', which no plugin declares; did you mean 'structured-outputs'?"
        assert f"problem  step-extension 'mine' from {file}" in output and f"(plugin 'ordered'): {problem}\n" in output
        assert (
            "note     step-extension 'mine'" in output and "after= names 'qqqqqq', which no plugin declares\n" in output
        )


def test_show_a_plugin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "show", "prefix_cache"]) == 0
    output = capsys.readouterr().out
    assert "prefix-cache:none, prefix-cache:radix" in output
    assert "prefix_cache/__init__.py" in output


def test_show_a_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "show", "sglang-plug"]) == 0
    output = capsys.readouterr().out
    assert "plugin prefix_cache" in output and "plugin routes" in output


def test_only_the_nearest_of_many_names_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "show", "zzzzzzzz"]) == 2
    error = capsys.readouterr().err
    assert "the nearest names are" in error and "sglang-plug plugins list" in error
    assert error.count(",") < 6


def test_show_a_broken_plugin_with_its_trace(plugin_file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "show", "broken", "--plugin", plugin_file("broken", BROKEN)]) == 0
    output = capsys.readouterr().out
    assert "RuntimeError: out of order" in output
    assert "Traceback" in output


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["show", "prefix_cash"], "no plugin or component named 'prefix_cash'; did you mean 'prefix_cache'?"),
        (["check", "evictoin"], "no plugin named 'evictoin'; did you mean 'eviction'?"),
        (["list", "--kind", "evict"], "no kind named 'evict'; did you mean 'eviction'?"),
        (["list", "--jsn"], "unknown option '--jsn'; did you mean '--json'?"),
        (["lst"], "invalid choice: 'lst'"),
        ([], "required: ACTION"),
    ],
)
def test_mistakes_are_named(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", *argv]) == 2
    assert message in capsys.readouterr().err


def test_check_a_good_plugin(plugin_file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "check", "good", "--plugin", plugin_file("good", GOOD)]) == 0
    output = capsys.readouterr().out
    assert "ok       eviction 'mine'" in output
    assert "skipped  eviction 'needy'" in output
    assert output.endswith("0 problems\n")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (BROKEN, "out of order"),
        (LOST, "No module named 'nowhere'"),
        (HEAVY, "imports numpy while declaring"),
        (CLASHING, "is also declared by"),
        ("x = 1", "implements no hook"),
    ],
    ids=["broken", "lost", "heavy", "clashing", "empty"],
)
def test_check_a_bad_plugin(source: str, problem: str, plugin_file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "check", "bad", "--plugin", plugin_file("bad", source)]) == 1
    output = capsys.readouterr().out
    assert problem in output
    assert output.endswith("1 problem\n")


CHOOSER = """
    @hookimpl
    def choose_component(kind, facts):
        return NAME if kind == "eviction" else None
"""


def test_plugins_that_disagree_are_listed_and_a_problem(plugin_file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    files = [plugin_file(name, CHOOSER.replace("NAME", repr(name))) for name in ("lfu", "fifo")]
    flags = [text for file in files for text in ("--plugin", str(file))]
    assert main([*flags, "plugins", "list"]) == 0
    listed = capsys.readouterr().out
    order = f"{files[1]}:fifo, {files[0]}:lfu"
    reason = f"{files[1]}:fifo is called first and chooses 'fifo', {files[0]}:lfu would choose 'lfu'"
    assert f"may choose components for 'auto', in this order: {order}\n" in listed and reason in listed
    assert main([*flags, "plugins", "check", "lfu"]) == 1
    assert reason in capsys.readouterr().out


def test_check_does_not_pass_what_is_blocked(plugin_file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["plugins", "check", "good", "--plugin", plugin_file("good", GOOD), "--block-plugin", "good"]
    assert main(argv) == 1
    assert "is blocked, so it was not checked" in capsys.readouterr().out


def test_a_healthy_installation(plugin_file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "doctor", "--plugin", plugin_file("good", GOOD), "--block-plugin", "demo"]) == 0
    output = capsys.readouterr().out
    assert "eviction 'needy'" in output
    assert "plugin 'demo' of sglang-plug" in output
    assert "torch " in output
    assert output.endswith("0 problems\n")


@pytest.mark.parametrize(("source", "problem"), [(BROKEN, "out of order"), (CLASHING, "is also declared by")])
def test_the_doctor_finds_what_is_broken(
    source: str, problem: str, plugin_file: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugins", "doctor", "--plugin", plugin_file("bad", source)]) == 1
    assert problem in capsys.readouterr().out


def test_the_doctor_warns_of_heavy_imports(plugin_file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    blocked = {plugin.name for plugin in Plugins.discover().loaded} - {
        "commands",
        "prefix_cache",
    }  # each takes a process
    flags = [flag for name in sorted(blocked) for flag in ("--block-plugin", name)]
    assert main(["plugins", "doctor", "--plugin", plugin_file("slow", HEAVY), *flags]) == 0
    output = capsys.readouterr().out
    assert "warning  plugin 'slow'" in output and "warning  plugin 'prefix_cache'" not in output
