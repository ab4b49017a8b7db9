"""Requests to whole engines with KV stores, and stores that break the contract."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from sglang_plug import Output, Request, SamplingParams

BLOCK = 16
"""Number of tokens in a block of these engines."""
BLOCKWISE = {"kv-tiers": {"block_tokens": BLOCK, "load": "always", "buffer_mib": 64, "step_mib": 0}}
"""Settings with which one block is copied in a step while other requests wait."""


def prompt(seed: int, length: int = 100) -> tuple[int, ...]:
    """Return a random prompt that depends on ``seed``."""
    generator = random.Random(seed)
    return tuple(generator.randrange(5, 90) for _ in range(length))


def request(id: str, tokens: Sequence[int], *, new: int = 6, **fields: Any) -> Request:
    """Return a greedy request."""
    return Request(id=id, tokens=tuple(tokens), params=SamplingParams(max_new_tokens=new, temperature=0.0), **fields)


def answer(engine: Any, tokens: Sequence[int], **fields: Any) -> Output:
    """Return the output of one request, after everything that it computed has been stored."""
    (output,) = engine.outputs([request("one", tokens, **fields)])
    if "kv_stores" in engine.control("info"):
        stored(engine)
    return output


def stored(engine: Any) -> dict[str, Any]:
    """Return the information about the tiers, once no block is queued for them."""
    while (info := engine.control("info")["kv_stores"])["queued_blocks"]:
        pass
    return dict(info["tiers"])


SLOW_PREFILL = """
    from __future__ import annotations

    import time

    from sglang_plug import ForwardPhase, StepExtension, StepExtensionSpec, hookimpl

    @hookimpl
    def register_step_extensions():
        yield StepExtensionSpec(name="slow-prefill", target=f"{__name__}:build")

    class SlowPrefill(StepExtension, ForwardPhase):
        def before_forward(self, chunks):
            if any(chunk.width > 1 for chunk in chunks):
                time.sleep(0.07)

    def build(context):
        return SlowPrefill()
"""
"""A plugin that slows prompts: 100 tokens, in two chunks, take a little more than 0.14 s."""

BROKEN_STORES = """
    from __future__ import annotations

    import time

    from sglang_plug import KVStoreError, KVStoreSpec, hookimpl
    from sglang_plug_backends.kv_stores.host import HostStore
    from sglang_plug_backends.kv_stores.settings import HostSettings

    @hookimpl
    def register_kv_stores():
        for store in Base.__subclasses__():
            yield KVStoreSpec(name=store.__name__.lower(), target=f"{__name__}:{store.__name__}")

    class Base(HostStore):
        verifies = False

        def __init__(self):
            super().__init__(HostSettings())

    class Damaging(Base):
        def load(self, keys, deadline):
            return [memoryview(bytes([block[0] ^ 1]) + bytes(block[1:])) for block in super().load(keys, deadline)]

    class Confusing(Base):
        def load(self, keys, deadline):
            return super().load(keys[::-1], deadline)

    class Short(Base):
        def load(self, keys, deadline):
            return [block[:-20] for block in super().load(keys, deadline)]

    class Raising(Base):
        def load(self, keys, deadline):
            raise OSError("the network is gone")

    class Slow(Base):
        def load(self, keys, deadline):
            time.sleep(3)
            return super().load(keys, deadline)

    class Crawling(Base):
        def load(self, keys, deadline):
            results = []
            for block in super().load(keys, deadline):
                late = time.monotonic() >= deadline
                time.sleep(0 if late else 0.05)
                results.append(KVStoreError("late") if late else block)
            return results

    class Forgetful(Base):
        def load(self, keys, deadline):
            self.clear()
            return super().load(keys, deadline)

    class Remote(Base):
        index_in_memory = False

    class Unclearable(Base):
        def clear(self):
            raise OSError("read-only")
"""
