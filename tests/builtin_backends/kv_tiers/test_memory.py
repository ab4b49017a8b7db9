"""The memory of KV stores counts as part of the server's planned memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sglang_plug import ConfigError


@pytest.mark.whole_engine
@pytest.mark.parametrize("slots", [256, None])
def test_a_store_beyond_the_memory_is_refused_with_numbers(
    serve: Callable[..., Any], config: Any, slots: int | None
) -> None:
    settings = {"host": {"bytes": "100TB"}}
    with pytest.raises(ConfigError, match="no memory for --kv-store host and its buffers: 102400.12 GB .* --set host"):
        serve(config("host", settings=settings, slots=slots))


@pytest.mark.whole_engine
def test_buffers_beyond_the_memory_are_refused_with_numbers(serve: Callable[..., Any], config: Any) -> None:
    settings = {"host": {"bytes": "1GB"}, "kv-tiers": {"buffer_mib": 100 << 20}}
    with pytest.raises(ConfigError, match="buffers: 204801.00 GB are configured, .* kv-tiers.buffer_mib"):
        serve(config("host", settings=settings))
