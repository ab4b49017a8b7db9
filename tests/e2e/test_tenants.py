"""Two API keys on one server: neither sees, uses or ends objects of the other; the admin key sees all of them."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from sglang_plug import FileRecord, StoreContext
from sglang_plug_api.stores.sqlite.database import Database

from .replaying import in_time, replayed
from .servers import TIMEOUT, until

PROMPT = "A long text that every tenant sends in the same words. " * 12
OLD = FileRecord(id="backend_input_file-old", purpose="batch", filename="a", bytes=3, created_at=1)


class Tenant:
    """A client with an API key."""

    def __init__(self, server: Any, key: str, header: str = "authorization") -> None:
        value = f"Bearer {key}" if header == "authorization" else key
        self.http = httpx.Client(base_url=server.url, headers={header: value}, timeout=TIMEOUT)

    def call(self, method: str, path: str, **more: Any) -> httpx.Response:
        return self.http.request(method, path, **more)

    def answer(self, method: str, path: str, **more: Any) -> Any:
        answer = self.call(method, path, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def upload(self, content: bytes = b"{}\n") -> str:
        files = {"file": ("a.jsonl", content)}
        return str(self.answer("POST", "/v1/files", files=files, data={"purpose": "batch"})["id"])

    def ids(self, path: str) -> set[str]:
        return {item["id"] for item in self.answer("GET", path)["data"]}

    def cached(self, path: str, body: dict[str, Any]) -> int:
        usage = self.answer("POST", path, json=body)["usage"]
        details = usage.get("prompt_tokens_details") or usage["input_tokens_details"]
        return int(details["cached_tokens"])


@pytest.fixture(scope="module")
def server(module_launcher: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server with three keys, and a storage folder in which an earlier version stored a file."""
    folder = tmp_path_factory.mktemp("storage")
    store = Database(folder / "batches.sqlite3", StoreContext(max_files=10, max_bytes=1000))
    store.add_file(replace(OLD, created_at=int(time.time())))
    store.close()
    with contextlib.closing(sqlite3.connect(folder / "batches.sqlite3")) as database, database:
        for table in ("files", "batches"):
            database.execute(f"ALTER TABLE {table} DROP COLUMN owner")
        database.execute("DROP TABLE database")
        database.execute("PRAGMA user_version = 2")
    (folder / "files").mkdir()
    (folder / "files" / OLD.id).write_text("{}\n")
    flags = ["--api-key", "key-a,key-b", "--admin-api-key", "key-admin", "--file-storage-path", str(folder)]
    return module_launcher.in_thread(*flags, "--tenant-isolation", "--enable-cache-report")


@pytest.fixture(scope="module")
def tenants(server: Any) -> Iterator[tuple[Tenant, Tenant, Tenant]]:
    """Clients with key A, with key B (in the header ``x-api-key``), and with the admin key."""
    three = Tenant(server, "key-a"), Tenant(server, "key-b", "x-api-key"), Tenant(server, "key-admin")
    yield three
    for tenant in three:
        tenant.http.close()


def check_unknown(tenant: Tenant, method: str, path: str, id: str) -> None:
    """Check that the answer for ``id`` is exactly that for an id that does not exist."""
    foreign = tenant.call(method, path.replace("ID", id))
    unknown = tenant.call(method, path.replace("ID", "x" * len(id)))
    assert foreign.status_code == unknown.status_code == 404
    assert foreign.text.replace(id, "") == unknown.text.replace("x" * len(id), "")


def test_files(tenants: tuple[Tenant, Tenant, Tenant]) -> None:
    a, b, admin = tenants
    mine, theirs = a.upload(), b.upload()
    assert mine in a.ids("/v1/files") and theirs not in a.ids("/v1/files")
    assert admin.ids("/v1/files") >= {mine, theirs, OLD.id}
    for method, path in (("GET", "/v1/files/ID"), ("GET", "/v1/files/ID/content"), ("DELETE", "/v1/files/ID")):
        for id in (mine, OLD.id):
            check_unknown(b, method, path, id)
    check_unknown(b, "GET", "/v1/files?after=ID", mine)
    assert a.call("GET", f"/v1/files/{mine}/content").content == b"{}\n"
    assert admin.answer("DELETE", f"/v1/files/{mine}")["deleted"]


def test_batches(tenants: tuple[Tenant, Tenant, Tenant], server: Any) -> None:
    a, b, admin = tenants
    line = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Hi", "max_tokens": 2}}
    file = a.upload(json.dumps(line).encode())
    body = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
    foreign = b.call("POST", "/v1/batches", json=body)
    unknown = b.call("POST", "/v1/batches", json={**body, "input_file_id": "x" * len(file)})
    assert foreign.status_code == unknown.status_code == 404
    assert foreign.text.replace(file, "") == unknown.text.replace("x" * len(file), "")
    id = a.answer("POST", "/v1/batches", json=body)["id"]
    assert id in a.ids("/v1/batches") & admin.ids("/v1/batches") and id not in b.ids("/v1/batches")
    check_unknown(b, "GET", "/v1/batches/ID", id)
    check_unknown(b, "POST", "/v1/batches/ID/cancel", id)
    until(lambda: a.answer("GET", f"/v1/batches/{id}")["status"] == "completed", "the batch completes")
    output = a.answer("GET", f"/v1/batches/{id}")["output_file_id"]
    assert a.call("GET", f"/v1/files/{output}/content").status_code == 200
    check_unknown(b, "GET", "/v1/files/ID/content", output)
    assert "key-a" not in server.log


def test_responses(tenants: tuple[Tenant, Tenant, Tenant]) -> None:
    a, b, admin = tenants
    id = a.answer("POST", "/v1/responses", json={"input": "Hi", "max_output_tokens": 2})["id"]
    for method, path in (
        ("GET", "/v1/responses/ID"),
        ("GET", "/v1/responses/ID/input_items"),
        ("POST", "/v1/responses/ID/cancel"),
        ("DELETE", "/v1/responses/ID"),
    ):
        check_unknown(b, method, path, id)
    turn = {"input": "And?", "max_output_tokens": 2}
    foreign = b.call("POST", "/v1/responses", json={**turn, "previous_response_id": id})
    unknown = b.call("POST", "/v1/responses", json={**turn, "previous_response_id": "x" * len(id)})
    assert foreign.status_code == unknown.status_code == 400
    assert foreign.text.replace(id, "") == unknown.text.replace("x" * len(id), "")
    for tenant in (a, admin):
        assert tenant.call("POST", "/v1/responses", json={**turn, "previous_response_id": id}).status_code == 200
    assert a.answer("DELETE", f"/v1/responses/{id}")["deleted"]


@replayed
def test_running_requests_have_the_same_id_and_are_ended_one_by_one(tenants: tuple[Tenant, Tenant, Tenant]) -> None:
    a, b, admin = tenants
    body = {"text": "Once", "rid": "mine", "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True}}
    started = {tenant: threading.Event() for tenant in (a, b)}
    reasons: dict[Tenant, str] = {}

    def generate(tenant: Tenant) -> None:
        with tenant.http.stream("POST", "/generate", json={**body, "stream": True}) as answer:
            assert answer.status_code == 200
            for text in answer.iter_lines():
                started[tenant].set()
                if text.startswith("data: {"):
                    finish = json.loads(text[6:])["meta_info"]["finish_reason"]
                    reasons[tenant] = finish["type"] if finish else ""

    threads = [threading.Thread(target=generate, args=(tenant,)) for tenant in (a, b)]
    for thread in threads:
        thread.start()
    for event in started.values():
        assert event.wait(TIMEOUT)
    twice = a.call("POST", "/generate", json={**body, "sampling_params": {"max_new_tokens": 1}})
    assert b.answer("POST", "/abort_request", json={"rid": "mine"})["aborted"] <= 1
    threads[1].join()
    ended = admin.answer("POST", "/abort_request", json={"rid": "mine"})["aborted"]
    threads[0].join()
    in_time(reasons == {a: "abort", b: "abort"} and ended == 1, "both requests still run when they are ended")
    assert twice.json()["message"] == "Duplicate request ID: 'mine' is still being served"


def test_prefixes_are_shared_within_a_tenant_only(tenants: tuple[Tenant, Tenant, Tenant]) -> None:
    a, b, _ = tenants
    for path, body in (
        ("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 1}),
        ("/v1/responses", {"input": "R " + PROMPT, "max_output_tokens": 1}),
    ):
        assert a.cached(path, body) < 20, path  # the beginning of the chat template may be known
        assert b.cached(path, body) < 20, path
        assert a.cached(path, body) > 50, path
        assert b.cached(path, {**body, "cache_salt": "s"}) < 20, path


def test_generate_is_isolated_too_and_a_salt_cannot_name_another_tenant(
    tenants: tuple[Tenant, Tenant, Tenant],
) -> None:
    from sglang_plug_api.service.callers import owner_id

    a, b, _ = tenants
    body = {"text": "G " + PROMPT, "sampling_params": {"max_new_tokens": 1}}
    cached = [tenant.answer("POST", "/generate", json=body)["meta_info"]["cached_tokens"] for tenant in (a, b, a)]
    assert cached[:2] == [0, 0] and cached[2] > 50
    for salt in (owner_id("key-a"), f"{owner_id('key-a')}:", f":{owner_id('key-a')}"):
        answer = b.answer("POST", "/generate", json={**body, "cache_salt": salt})
        assert answer["meta_info"]["cached_tokens"] == 0


def test_no_key_is_stored(tenants: tuple[Tenant, Tenant, Tenant], server: Any) -> None:
    tenants[0].upload()
    folder = Path(server.flags[server.flags.index("--file-storage-path") + 1])
    content = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert not any(key in content for key in (b"key-a", b"key-b", b"key-admin"))
    assert "1 files and batches were stored without an API key or by an earlier version" in server.log
