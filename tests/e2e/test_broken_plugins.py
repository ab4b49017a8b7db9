"""A selected plugin that does not work ends the start, and the last line of the output names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .servers import failed_start

ATTENTION = """
from sglang_plug import AttentionBackend, AttentionSpec, hookimpl

@hookimpl
def register_attention_backends():
    yield AttentionSpec(name="mine", target=f"{__name__}:Mine")

class Mine(AttentionBackend):
    def __init__(self, shape, device, settings=None):
        super().__init__(shape, device, settings)
        BUILDING

    def plan(self, batch):
        pass

    def run(self, layer, q, k, v, batch):
        RUNNING
"""
SCHEDULE = """
from sglang_plug import ScheduleSpec, hookimpl

@hookimpl
def register_schedule_policies():
    yield ScheduleSpec(name="mine", target=f"{__name__}:Mine")

class Mine:
    def order(self, waiting, match):
        return list(waiting)[1:]
"""


@pytest.mark.parametrize(
    ("flag", "source", "code", "message"),
    [
        (
            "--attention-backend",
            ATTENTION.replace("BUILDING", "raise OSError('no driver')"),
            2,
            "attention 'mine' from {file} {version} (plugin 'broken') failed to start: OSError: no driver",
        ),
        (
            "--attention-backend",
            ATTENTION.replace("BUILDING", "").replace("RUNNING", "raise OSError('no driver')"),
            2,
            "attention 'mine' from {file} {version} (plugin 'broken') failed to attend over one token: OSError",
        ),
        (
            "--attention-backend",
            ATTENTION.replace("BUILDING", "").replace("RUNNING", "return q * float('nan')"),
            1,
            "the warm-up request failed, as every other would: the model produced logits that are not finite",
        ),
        (
            "--schedule-policy",
            SCHEDULE,
            1,
            "schedule 'mine' from {file} {version} (plugin 'broken'): order() must return the 1 sequences",
        ),
    ],
    ids=["building", "running", "not finite", "order"],
)
def test_it_ends_the_start(tmp_path: Path, flag: str, source: str, code: int, message: str) -> None:
    file = tmp_path / "broken.py"
    file.write_text(source)
    output = failed_start(code, "--plugin", str(file), flag, "mine")
    assert "ready to roll" not in output
    before, _, after = message.partition("{version}")
    assert any(before.format(file=file) in line and after in line for line in output.splitlines())
