from __future__ import annotations

from typing import Any

import pytest
from sglang_plug_otel import Settings, register_observers


def test_it_is_off_by_default_and_needs_its_libraries() -> None:
    (spec,) = register_observers()
    assert (spec.kind, spec.name, spec.enabled) == ("observer", "otel", False)
    assert spec.needs and spec.settings == "sglang_plug_otel:Settings"


@pytest.mark.parametrize("settings", [{"queue_size": 0}, {"stop_timeout": -1.0}, {"endpoint": "collector:4318"}])
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        Settings(**settings)
