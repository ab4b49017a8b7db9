"""Tests of shell completion: commands, actions, options and components of plugins."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sglang_plug.__main__ import main
from sglang_plug_api.terminal.completion import next_words

EVICTION = """
    @hookimpl
    def register_cache_policies():
        yield EvictionSpec(name="mine", target="nowhere:Mine")
"""


@pytest.mark.parametrize(
    ("typed", "offered", "missing"),
    [
        ((), {"serve", "chat", "--version"}, {"--dtype"}),
        (("serve",), {"--eviction-policy", "--port"}, {"serve"}),
        (("serve", "--eviction-policy"), {"lru", "mine"}, {"--port"}),
        (("serve", "--attention-backend"), {"auto", "torch"}, {"lru"}),
        (("serve", "--dtype"), {"auto", "bfloat16"}, {"--port"}),
        (("serve", "--disable-cuda-graph"), {"--port"}, set()),
        (("bench",), {"serve"}, {"--num-prompts"}),
        (("bench", "serve"), {"--num-prompts"}, {"serve"}),
        (("bench", "serve", "--backend"), {"openai-chat"}, {"--port"}),
        (("bench", "latency", "--attention-backend"), {"auto", "torch"}, {"--port"}),
        (("plugins", "list"), {"--kind"}, {"doctor"}),
        (("plugins", "list", "--kind"), {"eviction", "tool-parser"}, {"lru"}),
        (("plugins", "show"), {"eviction", "sglang-plug", "lru", "mine"}, {"doctor"}),
        (("plugins", "show", "eviction", ":"), {"lru", "mine"}, {"eviction"}),
        (("plugins", "check"), {"eviction", "mine"}, {"lru"}),
        (("serve", "--block-plugin"), {"mine", "playground"}, {"lru"}),
        (("serve", "--set"), {"host.", "disk.", "int8."}, {"lru."}),
        (("--set",), {"host."}, {"serve"}),
        (("completion",), {"bash", "zsh", "fish"}, set()),
    ],
)
def test_what_may_come_next(
    typed: tuple[str, ...], offered: set[str], missing: set[str], discover: Any, plugin_file: Any
) -> None:
    words = set(next_words(typed, discover(plugin_file("mine", EVICTION))))
    assert offered <= words and not missing & words


def test_the_settings_of_a_component(discover: Any) -> None:
    assert "disk.path=" in next_words(("serve", "--set"), discover(), "disk.")
    assert next_words(("serve", "--set"), discover(), "nobody.") == []


def test_kind_and_name_of_a_name_that_several_kinds_have(discover: Any) -> None:
    words = next_words(("plugins", "show"), discover())
    assert {"torch", "attention:torch", "kernels:torch"} <= set(words)
    assert "eviction:lru" not in words and len(words) == len(set(words))


def test_free_text_is_left_to_the_shell(discover: Any) -> None:
    assert next_words(("serve", "--chat-template"), discover()) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_valid(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "sglang-plug completion " in script and "--current=" in script
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=script, text=True, check=True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("serve --attention-backend tri", ["triton"]),
        ("serve --set disk.pa", ["disk.path="]),
        ("plugins show evicti", ["eviction", "eviction:priority"]),
        ("plugins show eviction : lr", ["lru"]),
        ("plugins show eviction :", ["fifo", "lfu", "lru", "priority"]),
    ],
)
def test_bash_completes(line: str, answer: list[str]) -> None:
    """Bash gets the completions in ``COMPREPLY``, although it splits words at colons."""
    program = f'sglang-plug() {{ {sys.executable} -m sglang_plug "$@"; }}\n'
    call = (
        'eval "$(sglang-plug completion bash)"\n'
        "compopt() { :; }\n"
        f'COMP_WORDS=(sglang-plug {line}); COMP_CWORD={len(line.split())}\n_sglang_plug\necho "${{COMPREPLY[@]}}"\n'
    )
    done = subprocess.run(["bash", "-c", program + call], capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split()) == answer
