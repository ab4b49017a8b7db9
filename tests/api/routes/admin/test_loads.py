"""Tests of ``/v1/loads``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

KEYS = {
    "dp_rank", "num_running_reqs", "num_waiting_reqs", "num_total_reqs", "num_used_tokens", "num_cached_tokens",
    "token_usage", "max_total_num_tokens", "max_running_requests",
}  # fmt: skip


def test_idle(app: Any) -> None:
    (load,) = app.get("/v1/loads").json()["loads"]
    assert set(load) == KEYS
    assert (load["dp_rank"], load["num_running_reqs"], load["num_waiting_reqs"], load["token_usage"]) == (0, 0, 0, 0)
    assert load["max_total_num_tokens"] == app.info["max_total_tokens"]
    assert app.get("/load").json() == {**app.get("/v1/loads").json(), "server_load": 0}
    assert app.get("/get_load").json() == [{"dp_rank": 0, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0}]


def test_busy(apps: Callable[..., Any]) -> None:
    app = apps(max_running_requests=1)
    call = {"text": "Once", "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True}}

    async def work() -> Any:
        tasks = [asyncio.ensure_future(app.client.post("/generate", json=call)) for _ in range(3)]
        while True:
            (load,) = (await app.client.get("/load")).json()["loads"]
            if load["num_waiting_reqs"] == 2 and load["num_used_tokens"] > 3:
                break
            await asyncio.sleep(0.005)
        await app.client.post("/abort_request", json={"abort_all": True})
        await asyncio.gather(*tasks)
        return load

    load = app.run(work())
    assert (load["num_running_reqs"], load["num_total_reqs"], load["max_running_requests"]) == (1, 3, 1)
    assert load["token_usage"] == load["num_used_tokens"] / load["max_total_num_tokens"] > 0
    assert app.is_whole()
