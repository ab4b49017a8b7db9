"""A web page whose host name resolves to this machine (DNS rebinding) gets an error from every route."""

from __future__ import annotations

from typing import Any

import pytest

EVIL = {"host": "evil.example", "origin": "http://evil.example", "sec-fetch-site": "same-origin"}
EXPERTS = [f"/{verb}_expert_distribution_record" for verb in ("start", "stop", "dump")]
BODILESS = [("GET", "/flush_cache"), ("POST", "/flush_cache"), *(("POST", path) for path in EXPERTS)]
BODILESS += [("POST", "/v1/batches/batch_x/cancel"), ("POST", "/v1/responses/resp_x/cancel")]
BODILESS += [("DELETE", "/v1/files/file-x"), ("DELETE", "/v1/responses/resp_x"), ("POST", "/v1/files")]


@pytest.mark.parametrize(("method", "path"), BODILESS)
def test_pages_of_other_origins_are_refused_without_a_body_too(server: Any, method: str, path: str) -> None:
    assert server.client.request(method, path, headers=EVIL).status_code == 421
    assert server.client.request(method, path, headers={"origin": "http://evil.example"}).status_code == 403
    assert server.client.request(method, path, headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert server.client.request(method, path).status_code not in (403, 421)


def test_a_rebound_name_reads_nothing(server: Any) -> None:
    for path in ("/v1/models", "/v1/files", "/health", "/metrics", "/docs", "/openapi.json", "/nothing"):
        answer = server.get(path, headers={"host": "evil.example"})
        assert answer.status_code == 421, path
        assert "--allowed-hosts" in answer.json()["error"]["message"]


def test_the_server_s_own_pages_work(server: Any) -> None:
    own = {"origin": server.url, "sec-fetch-site": "same-origin"}
    assert server.post("/flush_cache", headers=own).status_code in (200, 400)
    assert server.post("/flush_cache", headers={"origin": server.url}).status_code in (200, 400)
