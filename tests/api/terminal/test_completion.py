"""The words that a shell offers: commands, actions, options and components of plugins."""

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
        (("plugins", "list"), {"--kind"}, {"doctor"}),
        (("completion",), {"bash", "zsh", "fish"}, set()),
    ],
)
def test_what_may_come_next(
    typed: tuple[str, ...], offered: set[str], missing: set[str], discover: Any, plugin_file: Any
) -> None:
    words = set(next_words(typed, discover(plugin_file("mine", EVICTION))))
    assert offered <= words and not missing & words


def test_free_text_is_left_to_the_shell(discover: Any) -> None:
    assert next_words(("serve", "--chat-template"), discover()) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_valid(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "sglang-plug completion words -- " in script
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=script, text=True, check=True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_a_component() -> None:
    """The function runs as bash calls it, and leaves its answer in COMPREPLY."""
    program = f'sglang-plug() {{ {sys.executable} -m sglang_plug "$@"; }}\n'
    call = (
        'eval "$(sglang-plug completion bash)"\n'
        'COMP_WORDS=(sglang-plug serve --attention-backend tri); COMP_CWORD=3\n_sglang_plug\necho "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(["bash", "-c", program + call], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["triton"]
