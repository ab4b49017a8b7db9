"""Route plugins that are blocked, added and in conflict, and a server whose queue is full."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx

from .replaying import in_time, replayed
from .servers import TIMEOUT, refused_start

AUTHORIZED = {"authorization": b"Bearer admin-key"}
CLAIM = """
from __future__ import annotations

from sglang_plug import hookimpl
from sglang_plug.plugins.specs import RouteSpec


@hookimpl
def register_routes():
    yield RouteSpec(name="my-models", target=f"{__name__}:build")


def build(engine):
    from fastapi import APIRouter

    router = APIRouter()
    router.add_api_route("{path}", lambda: {}, methods=["GET"])
    return router
"""


def test_a_blocked_route_is_gone(guarded: Any) -> None:
    answer = guarded.get("/metrics", headers=AUTHORIZED)
    assert answer.status_code == 404
    assert "there is no route '/metrics'" in answer.json()["error"]["message"]
    document = guarded.get("/openapi.json", headers=AUTHORIZED).json()
    assert "/metrics" not in document["paths"] and "/count" in document["paths"]
    table = guarded.get("/plugins", headers=AUTHORIZED).json()
    assert {"name": "route:metrics"} in table["blocked"]
    assert ("route", "metrics") not in {(component["kind"], component["name"]) for component in table["components"]}


def test_a_one_file_plugin_adds_a_route(guarded: Any) -> None:
    answer = guarded.get("/count", params={"text": "The capital of France is"}, headers=AUTHORIZED)
    assert answer.json() == {"tokens": [321, 310, 304, 995, 300]}
    missing = guarded.get("/count", headers=AUTHORIZED)
    assert missing.status_code == 400
    assert missing.json()["error"]["param"] == "text"


def test_a_route_that_is_taken_stops_the_start(tmp_path: Path) -> None:
    plugin = tmp_path / "claim.py"
    plugin.write_text(CLAIM.replace("{path}", "/v1/models"))
    output = refused_start("--plugin", str(plugin))
    (message,) = [line for line in output.splitlines() if "is claimed by" in line]
    assert "GET /v1/models is claimed by route 'models' from sglang-plug" in message
    assert "by route 'my-models' from" in message and str(plugin) in message
    assert "--block-plugin route:my-models" in message
    assert "Traceback" not in output


@replayed
async def test_overload_is_refused_and_the_rest_served_whole(guarded: Any) -> None:
    body = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 200, "ignore_eos": True}}
    async with httpx.AsyncClient(base_url=guarded.url, timeout=TIMEOUT, headers=AUTHORIZED) as client:
        answers = await asyncio.gather(*(client.post("/generate", json=body) for _ in range(6)))
        streams = await asyncio.gather(*(client.post("/generate", json={**body, "stream": True}) for _ in range(6)))
        batch = await client.post("/generate", json={**body, "text": ["a", "b", "c"]})
        assert batch.status_code == 400, "it cannot be served at any time"
        assert "at most 2 run and wait together" in batch.json()["error"]["message"]
        while (info := (await client.get("/server_info")).json())["running"] + info["waiting"]:
            pass
    for responses in (answers, streams):
        codes = sorted(answer.status_code for answer in responses)
        in_time(codes.count(200) <= 2, "all six are there before the first has ended")
        assert codes == [200, 200, 503, 503, 503, 503]
    for answer in answers:
        if answer.status_code == 200:
            assert answer.json()["meta_info"]["completion_tokens"] == 200
        else:
            error = answer.json()["error"]
            assert (error["type"], "queue is full" in error["message"]) == ("ServiceUnavailableError", True)
    assert all(answer.text.endswith("data: [DONE]\n\n") for answer in streams if answer.status_code == 200)
    assert info["slots"]["free"] + info["slots"]["cached"] == info["slots"]["capacity"]
