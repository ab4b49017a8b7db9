"""An error names the prefix cache that loses slots."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import EngineConfig, Request, SamplingParams
from sglang_plug.config import CacheOptions, ModelOptions, PluginOptions
from sglang_plug.contracts.serving.engine_client import EngineError

LOSING = """
    from __future__ import annotations

    from sglang_plug import hookimpl
    from sglang_plug.plugins.specs import PrefixCacheSpec
    from sglang_plug_backends.prefix_cache.radix import RadixCache

    @hookimpl
    def register_cache_policies():
        yield PrefixCacheSpec(name="uncounted", target=f"{__name__}:Uncounted")
        yield PrefixCacheSpec(name="losing", target=f"{__name__}:Losing")

    class Uncounted(RadixCache):
        @property
        def size(self):
            return max(0, super().size - 1)

    class Losing(RadixCache):
        def evict(self, count):
            return super().evict(count)[:-1]
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [("uncounted", "KV slots do not add up: "), ("losing", "evict() returned ")],
)
def test_a_prefix_cache_that_loses_slots_is_named(
    name: str, message: str, tiny_model: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "cache.py"
    file.write_text(textwrap.dedent(LOSING))
    config = EngineConfig(
        model=ModelOptions(path=str(tiny_model("llama-3.2-1b").path), device="cpu"),
        cache=CacheOptions(max_total_tokens=32, prefix_cache=name),
        plugins=PluginOptions(files=(str(file),)),
    )
    engine = serve(config)
    with pytest.raises(EngineError) as error:
        for number in range(3):
            tokens = tuple(range(10 + 40 * number, 38 + 40 * number))
            engine.outputs([Request(id=str(number), tokens=tokens, params=SamplingParams(max_new_tokens=2))])
            engine.control("info")
    assert message in str(error.value)
    assert f"prefix-cache {name!r} from {file}" in str(error.value) and "(plugin 'cache')" in str(error.value)
