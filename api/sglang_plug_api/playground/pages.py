"""The pages and their scripts, which come with the distribution and load nothing from another host."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import PurePosixPath

from fastapi import APIRouter, Request, Response

from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.text.text_engine import TextEngine

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""The pages run no inline script, call no other host, and cannot be framed."""
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class StaticFile:
    """A file of the pages, read once.

    Args:
        name: its name, whose ending says its media type.
        content: its bytes.
    """

    def __init__(self, name: str, content: bytes) -> None:
        self.content = content
        self.media_type = MEDIA_TYPES[PurePosixPath(name).suffix]
        self.tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'

    def response(self, request: Request) -> Response:
        """Return the file, or 304 if the browser has it."""
        headers = {**HEADERS, "etag": self.tag}
        known = (tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(","))
        if self.tag in known:
            return Response(status_code=304, headers=headers)
        return Response(self.content, media_type=self.media_type, headers=headers)


def static_files() -> dict[str, StaticFile]:
    """Read the files that the pages consist of, by name."""
    folder = files(__package__) / "static"
    return {
        item.name: StaticFile(item.name, item.read_bytes())
        for item in folder.iterdir()
        if PurePosixPath(item.name).suffix in MEDIA_TYPES
    }


def build(engine: TextEngine) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["playground"])
    by_name = static_files()

    @router.get("/", summary="Page to try the model", include_in_schema=False)
    async def playground(request: Request) -> Response:
        return by_name["index.html"].response(request)

    @router.get("/playground/operations", summary="Page to watch the server", include_in_schema=False)
    async def operations(request: Request) -> Response:
        return by_name["operations.html"].response(request)

    @router.get("/docs", summary="Page of the routes, to read and to try", include_in_schema=False)
    async def docs(request: Request) -> Response:
        return by_name["docs.html"].response(request)

    @router.get("/playground/{name}", summary="Scripts and styles of the pages", include_in_schema=False)
    async def asset(request: Request, name: str) -> Response:
        if name not in by_name or name.endswith(".html"):
            raise ApiError(f"the playground has no file {name[:80]!r}", 404)
        return by_name[name].response(request)

    return router
