"""Tests of ``/v1/files``."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

LARGEST = 3000
JSON = b'{"a": 1}\n'


@pytest.fixture(scope="module")
def app(apps: Callable[..., Any]) -> Iterator[Any]:
    """A running application with low limits of stored files."""
    app = apps(max_file_bytes=LARGEST, max_files=8, max_request_bytes=1000)
    lifespan = app.application.router.lifespan_context(app.application)
    app.run(lifespan.__aenter__())
    yield app
    app.run(lifespan.__aexit__(None, None, None))


@pytest.fixture(scope="module")
def folder(app: Any) -> Path:
    """The storage folder of the application."""
    return Path(app.engine.config.storage.file_storage_path)


@pytest.fixture(autouse=True)
def tidy(app: Any) -> Iterator[None]:
    """Delete all files after each test."""
    yield
    for file in app.get("/v1/files").json()["data"]:
        app.run(app.client.delete(f"/v1/files/{file['id']}"))


def upload(app: Any, content: bytes = JSON, name: str = "in.jsonl", purpose: str = "batch") -> httpx.Response:
    files = {"file": (name, io.BytesIO(content))}
    response: httpx.Response = app.run(app.client.post("/v1/files", files=files, data={"purpose": purpose}))
    return response


def raw(app: Any, body: bytes, boundary: str = "XX", **headers: str) -> httpx.Response:
    kind = {"content-type": f"multipart/form-data; boundary={boundary}", **headers}
    response: httpx.Response = app.run(app.client.post("/v1/files", content=body, headers=kind))
    return response


def part(name: str, value: bytes, filename: str | None = None) -> bytes:
    disposition = f'form-data; name="{name}"' + ("" if filename is None else f'; filename="{filename}"')
    return f"--XX\r\nContent-Disposition: {disposition}\r\n\r\n".encode() + value + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--XX--\r\n"


def refused(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def test_a_file_comes_back_as_it_was(app: Any) -> None:
    content = bytes(range(256)) * 10
    file = upload(app, content).json()
    assert file["id"].startswith("backend_input_file-")
    assert (file["object"], file["bytes"], file["purpose"], file["filename"]) == ("file", 2560, "batch", "in.jsonl")
    assert app.get(f"/v1/files/{file['id']}").json() == file
    assert app.get(f"/v1/files/{file['id']}/content").content == content


def test_delete(app: Any, folder: Path) -> None:
    id = upload(app).json()["id"]
    assert app.run(app.client.delete(f"/v1/files/{id}")).json() == {"id": id, "object": "file", "deleted": True}
    assert list((folder / "files").iterdir()) == []
    for answer in (app.get(f"/v1/files/{id}"), app.run(app.client.delete(f"/v1/files/{id}"))):
        refused(answer, 404)


def test_list(app: Any) -> None:
    ids = [upload(app).json()["id"] for _ in range(3)]
    page = app.get("/v1/files").json()
    assert [item["id"] for item in page["data"]] == ids[::-1]
    assert (page["first_id"], page["last_id"], page["has_more"]) == (ids[2], ids[0], False)
    page = app.get(f"/v1/files?limit=1&order=asc&after={ids[0]}&purpose=batch").json()
    assert [item["id"] for item in page["data"]] == [ids[1]] and page["has_more"]
    assert app.get("/v1/files?purpose=other").json()["data"] == []
    assert refused(app.get("/v1/files?limit=0"))["param"] == "limit"
    refused(app.get("/v1/files?order=up"))
    refused(app.get("/v1/files?after=nothing"), 404)


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "a\\b", "ü.jsonl", "a b", "x" * 400, "..", "nul\x00byte"]
)
def test_a_name_is_only_text(app: Any, folder: Path, name: str) -> None:
    before = set(folder.parent.rglob("*"))
    file = upload(app, name=name).json()
    after = {path for path in set(folder.parent.rglob("*")) - before if path.parent.name == "files"}
    assert after == {folder / "files" / file["id"]}
    assert file["filename"]
    assert len(file["filename"]) <= 256


@pytest.mark.parametrize(
    "id",
    [
        "..",
        "../batches.sqlite3",
        "..%2fbatches.sqlite3",
        "%2e%2e%2fbatches.sqlite3",
        "backend_input_file-",
        "%00",
        "x" * 999,
    ],
)
@pytest.mark.parametrize("end", ["", "/content"])
def test_an_id_is_never_a_path(app: Any, folder: Path, id: str, end: str) -> None:
    upload(app)
    for method in ("GET", "DELETE"):
        answer = app.run(app.client.request(method, f"/v1/files/{id}{end}"))
        assert answer.status_code in (404, 405) or answer.url.path == "/v1/files", answer.text
        assert b"SQLite" not in answer.content
    assert (folder / "batches.sqlite3").exists()


def ranged(app: Any, range: str, **headers: str) -> httpx.Response:
    """Return the answer to a range request for a file of ten bytes."""
    id = upload(app, b"0123456789").json()["id"]
    response: httpx.Response = app.get(f"/v1/files/{id}/content", headers={"range": range, **headers})
    return response


@pytest.mark.parametrize(
    ("range", "content"),
    [("bytes=2-4", b"234"), ("bytes=7-", b"789"), ("bytes=-2", b"89"), ("bytes=8-50", b"89"), ("BYTES=0-0,", b"0")],
)
def test_some_bytes(app: Any, range: str, content: bytes) -> None:
    answer = ranged(app, range)
    assert (answer.status_code, answer.content) == (206, content)
    assert answer.headers["content-range"].endswith("/10")


def test_several_ranges(app: Any) -> None:
    answer = ranged(app, "bytes=0-1, 4-5")
    assert answer.status_code == 206
    assert b"bytes 0-1/10" in answer.content and b"bytes 4-5/10" in answer.content


@pytest.mark.parametrize(
    "range",
    ["items=1-2", "bytes=abc", "bytes=5-2", "bytes=", "bytes=-", "bytes", "bytes=0-1,x", f"bytes={'9' * 5000}-", ""],
)
def test_a_range_that_is_malformed_or_of_another_unit_is_ignored(app: Any, range: str) -> None:
    answer = ranged(app, range)
    assert (answer.status_code, answer.content) == (200, b"0123456789")
    assert answer.headers["content-length"] == "10"


@pytest.mark.parametrize("range", ["bytes=50-60", "bytes=10-", "bytes=-0", "bytes=0-1,50-60"])
def test_a_range_behind_the_end_is_refused_in_json(app: Any, range: str) -> None:
    answer = ranged(app, range)
    refused(answer, 416)
    assert answer.headers["content-range"] == "bytes */10"


def test_a_range_of_another_version_of_the_file_is_ignored(app: Any) -> None:
    answer = ranged(app, "bytes=50-60", **{"if-range": '"another"'})
    assert (answer.status_code, answer.content) == (200, b"0123456789")


def test_the_files_limit_is_not_that_of_other_bodies(app: Any) -> None:
    assert upload(app, b"x" * LARGEST).json()["bytes"] == LARGEST
    error = refused(upload(app, b"x" * (LARGEST + 1)), 413)
    assert str(LARGEST) in error["message"]
    refused(app.post("/v1/batches", {"input_file_id": "x" * 2000}), 413)


def test_a_body_without_length_is_stopped_too(app: Any, folder: Path) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield part("file", b"", "a")[:-2]
        for _ in range(100):
            yield b"x" * 10_000

    kind = {"content-type": "multipart/form-data; boundary=XX"}
    refused(app.run(app.client.post("/v1/files", content=endless(), headers=kind)), 413)
    assert list((folder / "files").iterdir()) == []


def test_too_many_files(app: Any) -> None:
    answers = [upload(app).status_code for _ in range(9)]
    assert answers == [200] * 8 + [413]
    assert refused(upload(app), 413)["code"] == "storage_full"


def test_uploads_in_progress_are_limited_together(apps: Callable[..., Any]) -> None:
    app = apps(max_file_bytes=4 << 20, max_storage_bytes=5 << 20)
    kind = {"content-type": "multipart/form-data; boundary=XX"}
    begun, finish = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield part("file", b"x" * (3 << 20), "a")
        begun.set()
        await finish.wait()
        yield PURPOSE + b"--XX--\r\n"

    async def two_uploads() -> tuple[httpx.Response, httpx.Response]:
        first = asyncio.create_task(app.client.post("/v1/files", content=slow(), headers=kind))
        await begun.wait()
        body = form(part("file", b"y" * (3 << 20), "b"), PURPOSE)
        second = await app.client.post("/v1/files", content=body, headers=kind)
        finish.set()
        return await first, second

    first, second = app.run(two_uploads())
    assert first.status_code == 200
    error = refused(second, 413)
    assert error["code"] == "storage_full" and "uploads in progress" in error["message"]
    assert app.run(app.client.delete(f"/v1/files/{first.json()['id']}")).status_code == 200
    again = app.run(
        app.client.post("/v1/files", content=form(part("file", b"z" * (3 << 20), "c"), PURPOSE), headers=kind)
    )
    assert again.status_code == 200


def test_one_upload_that_is_larger_than_the_storage_is_refused_by_the_store(apps: Callable[..., Any]) -> None:
    app = apps(max_file_bytes=4 << 20, max_storage_bytes=2 << 20)
    body = form(part("file", b"y" * (3 << 20), "b"), PURPOSE)
    kind = {"content-type": "multipart/form-data; boundary=XX"}
    error = refused(app.run(app.client.post("/v1/files", content=body, headers=kind)), 413)
    assert error["code"] == "storage_full" and "the storage would hold more than" in error["message"]


PURPOSE = part("purpose", b"batch")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (form(part("purpose", b"batch")), "file"),
        (form(part("file", JSON, "a")), "purpose"),
        (form(part("file", JSON, "a"), part("purpose", b"fine-tune")), "purpose"),
        (form(part("file", b"data.jsonl"), PURPOSE), "file"),
        (form(PURPOSE, part("file", b"data.jsonl", "")), "file"),
        (form(part("file", JSON, "a"), PURPOSE, part("expires_after[seconds]", b"9")), "expires_after"),
        (form(part("file", JSON, "a"), part("file", JSON, "b"), part("purpose", b"batch")), "file"),
        (form(part("document", JSON, "a"), part("purpose", b"batch")), "file"),
        (part("file", JSON, "a") + part("purpose", b"batch"), None),
        (b"", None),
        (b"nothing of a form", None),
        (b"--XX\r\nContent-Type: text/plain\r\n\r\nx\r\n--XX--\r\n", None),
    ],
)
def test_broken_forms(app: Any, folder: Path, body: bytes, param: str | None) -> None:
    assert refused(raw(app, body))["param"] == param
    assert list((folder / "files").iterdir()) == []


def test_parts_are_limited(app: Any) -> None:
    refused(raw(app, form(*[part("x", b"y")] * 17)), 413)
    refused(raw(app, form(part("purpose", b"b" * 1025))), 413)
    refused(raw(app, b"--XX\r\n" + b"A: b\r\n" * 500 + b"\r\nx\r\n--XX--\r\n"))


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data", "multipart/form-data; boundary=", "text"])
def test_other_content_types(app: Any, kind: str) -> None:
    refused(app.run(app.client.post("/v1/files", content=b"{}", headers={"content-type": kind})), 415)


def test_a_page_cannot_make_its_reader_upload(app: Any) -> None:
    body = form(part("file", JSON, "a"), part("purpose", b"batch"))
    refused(raw(app, body, origin="https://example.com"), 403)
    assert raw(app, body, origin="https://example.com", authorization="Bearer x").status_code == 200


def test_the_order_of_parts_does_not_matter_and_unknown_fields_pass(app: Any) -> None:
    for parts in (
        (part("purpose", b"batch"), part("other", b"x"), part("file", JSON, "a")),
        (part("file", JSON, "a"), part("purpose", b"batch")),
    ):
        assert raw(app, form(*parts)).json()["bytes"] == len(JSON)


def test_a_forgotten_at_sign_is_told(app: Any) -> None:
    """``curl -F file=data.jsonl`` sends the name of the file as text."""
    message = refused(raw(app, form(part("file", b"data.jsonl"), PURPOSE)))["message"]
    assert "has no filename" in message and "-F file=@NAME" in message


@pytest.mark.parametrize(
    ("written", "name"),
    [
        (b"filename*=UTF-8''%C3%BC.jsonl", "ü.jsonl"),
        (b"FILENAME=a.jsonl", "a.jsonl"),
        (b"filename*=iso-8859-1'en'%FC.jsonl", "ü.jsonl"),
    ],
)
def test_other_spellings_of_a_filename(app: Any, written: bytes, name: str) -> None:
    file = b'--XX\r\nContent-Disposition: form-data; name="file"; ' + written + b"\r\n\r\n{}\r\n"
    answer = raw(app, form(file, PURPOSE))
    assert answer.status_code == 200, answer.text
    assert answer.json()["filename"] == name


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.sampled_from([b"--XX", b"--", b"\r\n", b"Content-Disposition: form-data; ", b'name="file"', b"\0", b";"])
    )
)
def test_any_body_is_refused_in_json(app: Any, pieces: list[bytes]) -> None:
    answer = raw(app, b"".join(pieces))
    assert answer.status_code in (400, 413)
    assert answer.json()["error"]["message"]


def test_a_file_whose_content_is_missing_is_told_as_an_error(app: Any, folder: Path) -> None:
    id = upload(app).json()["id"]
    (folder / "files" / id).unlink()
    assert "is missing from" in refused(app.get(f"/v1/files/{id}/content"), 503)["message"]
