"""Tests of ``/start_…``, ``/stop_…`` and ``/dump_expert_distribution_record``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

START, STOP, DUMP = (f"/{verb}_expert_distribution_record" for verb in ("start", "stop", "dump"))
CALL = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}}


def options(model: Any, folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "model_path": str(model.path),
        "skip_tokenizer_init": True,
        "expert_distribution_dir": str(folder),
        **more,
    }


@pytest.mark.parametrize("mode", ["stat", "per_token"])
def test_record(mode: str, apps: Callable[..., Any], tiny_model: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "records"
    app = apps(**options(tiny_model("qwen1.5-moe"), folder, expert_distribution_recorder_mode=mode))
    response = app.post(START)
    assert (response.status_code, response.text) == (200, "Start recording expert distribution.\n")
    app.answer("/generate", CALL)
    response = app.post(STOP)
    assert (response.status_code, response.text) == (200, "Stop recording expert distribution.\n")
    app.answer("/generate", CALL)
    response = app.post(DUMP)
    title, *names = response.text.splitlines()
    assert (response.status_code, title) == (200, "Dump expert distribution record.")
    assert {Path(name) for name in names} == set(folder.iterdir())
    table = next(Path(name) for name in names if name.endswith(".csv"))
    lines = [line.split(",") for line in table.read_text().splitlines()]
    assert lines[0] == ["layer_id", "expert_id", "count"]
    assert len(lines) == 1 + 3 * 12
    assert sum(int(count) for _, _, count in lines[1:]) == 3 * 4 * 6  # layers, experts of a token, tokens
    assert "start recording first" in app.refusal(DUMP, None)["message"]


def test_without_the_mode(apps: Callable[..., Any], tiny_model: Callable[..., Any], tmp_path: Path) -> None:
    app = apps(**options(tiny_model("qwen1.5-moe"), tmp_path))
    for path in (START, STOP, DUMP):
        assert "started without --expert-distribution-recorder-mode" in app.refusal(path, None)["message"]


def test_a_model_without_experts(apps: Callable[..., Any], tiny_model: Callable[..., Any], tmp_path: Path) -> None:
    app = apps(**options(tiny_model("qwen3-0.6b"), tmp_path, expert_distribution_recorder_mode="stat"))
    for path in (START, STOP, DUMP):
        assert app.refusal(path, None)["message"] == "Qwen3ForCausalLM has no experts whose choices could be recorded"


def test_administrators_only(apps: Callable[..., Any], tiny_model: Callable[..., Any], tmp_path: Path) -> None:
    more = {"admin_api_key": "secret", "expert_distribution_recorder_mode": "stat"}
    app = apps(**options(tiny_model("qwen1.5-moe"), tmp_path, **more))
    assert app.post(START).status_code == 401
    assert app.post(START, headers={"Authorization": "Bearer secret"}).status_code == 200
