"""The engine knows tokens, KV slots and tensors; features belong to plugins, which take part through contracts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.policy.measure import ENGINE, feature_modules

CONTRACT_NAMES = {"execution/executors.py", "extensions/points.py", "extensions/step_points.py"}
"""Modules that name the phases of the contract of step extensions, some of which are named after a feature."""
MENTIONS: dict[str, set[str]] = {
    "images": set(),
    "grammars": set(),
    "graphs": CONTRACT_NAMES,
    "recurrent state": {"loading/resolve.py"},  # facts for extensions, read from the model
    "adapters": set(),
}
"""Modules of the engine that mention a feature. Verification of draft tokens, forced tokens and the transport to other
ranks are mechanisms of the engine."""


@pytest.mark.parametrize("feature", MENTIONS)
def test_the_engine_mentions_no_feature(feature: str, sources: list[Any]) -> None:
    modules = {path.relative_to(ENGINE).as_posix() for path in feature_modules(feature, sources)}
    assert modules == MENTIONS[feature]


def test_the_test_can_fail(sources: list[Any]) -> None:
    assert Path(ENGINE, "sequences/scheduled_chunk.py") in feature_modules("drafts", sources)
