"""``sglang-plug plugins freeze`` prints a lock file for ``--locked``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sglang_plug.__main__ import main
from sglang_plug.testing.server.running_server import running_server


def test_the_printed_file_is_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "freeze"]) == 0
    lock = tmp_path / "plugins.json"
    lock.write_text(capsys.readouterr().out)
    assert {"lock_version": 1, "api_version": 1}.items() <= json.loads(lock.read_text()).items()
    assert main(["plugins", "list", "--locked", str(lock)]) == 0


def test_serve_names_what_is_not_locked(tmp_path: Path, plugin_file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "freeze"]) == 0
    lock = tmp_path / "plugins.json"
    lock.write_text(capsys.readouterr().out)
    assert main(["serve", "--locked", str(lock), "--plugin", plugin_file("further", "")]) == 2
    error = capsys.readouterr().err
    assert "plugin 'further' of" in error and "is not in the lock file" in error


def test_a_plugin_that_fails_is_not_frozen(plugin_file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "freeze", "--plugin", plugin_file("broken", "raise RuntimeError('out of order')")]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and "out of order" in printed.err


@pytest.mark.whole_engine
def test_a_server_starts_with_its_lock_file(
    tmp_path: Path, plugin_file: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    policy = plugin_file(
        "policy",
        "@hookimpl\ndef register_cache_policies():\n    yield EvictionSpec(name='mine', target=f'{__name__}:Mine')\n"
        "class Mine:\n    def eviction_priority(self, node): return node.used\n",
    )
    command = [sys.executable, "-m", "sglang_plug", "plugins", "freeze", "--plugin", policy]  # the flags of the server
    lock = tmp_path / "plugins.json"
    lock.write_text(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    options = ("--device", "cpu", "--plugin", policy, "--eviction-policy", "mine", "--locked", str(lock))
    with running_server(options, "sesame") as server:
        body = b'{"text": "a b", "sampling_params": {"max_new_tokens": 4, "temperature": 0}}'
        assert server.send("POST", "/generate", body).status == 200
    Path(policy).write_text(Path(policy).read_text() + "# changed\n")
    with (
        pytest.raises(AssertionError, match="plugin 'policy' of .*policy.py has version .* is locked"),
        running_server(options, "sesame"),
    ):
        pass
