"""The report of ``env`` has the facts that a bug report needs, and no secret."""

from __future__ import annotations

import json
import platform
from typing import Any

import pytest

from sglang_plug.__main__ import main
from sglang_plug_api.commands.env import environment_report


def test_the_report_names_versions_machine_and_plugins(plugin_file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    mine, broken = plugin_file("mine", ""), plugin_file("broken", "raise RuntimeError('out of order')")
    assert main(["env", "--json", "--plugin", mine, "--plugin", broken]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["versions"]["python"] == platform.python_version()
    assert report["system"]["cores"].partition(" ")[0].isdigit()
    assert report["torch"]["CUDA available"] in ("True", "False")
    assert report["plugins of others"]["mine"].startswith(mine)
    assert report["plugins that fail"] == {"broken": "RuntimeError: out of order"}


def test_the_text_has_the_same_sections(capsys: pytest.CaptureFixture[str], discover: Any) -> None:
    assert main(["env"]) == 0
    titles = [line for line in capsys.readouterr().out.splitlines() if line and not line.startswith(" ")]
    assert titles == list(environment_report(discover(), {}))


def test_secrets_of_the_environment_are_hidden(discover: Any) -> None:
    variables = {"SGLANG_PLUG_API_KEY": "hush", "HF_TOKEN": "quiet", "HF_HOME": "/models", "HOME": "/nobody"}
    environment = environment_report(discover(), variables)["environment"]
    assert environment == {
        "HF_HOME": "/models",
        "HF_TOKEN": "******** (hidden)",
        "SGLANG_PLUG_API_KEY": "******** (hidden)",
    }
