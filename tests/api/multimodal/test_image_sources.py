"""Images that requests refer to are fetched, or refused because of their address."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import ConfigError, MediaError
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.multimodal.image_sources import CONCURRENT_FETCHES, ImageSources
from sglang_plug_api.multimodal.images import RequestImage
from sglang_plug_api.options.config import MediaSourcesConfig


class Uploaded:
    """An uploaded file of so many bytes, which records the maximum number of concurrent reads."""

    def __init__(self, size: int = 10) -> None:
        self.size, self.running, self.max_running = size, 0, 0
        self.cancelled = 0

    async def read(self, limit: int) -> bytes:
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        try:
            await asyncio.sleep(0.001 if self.size else 60)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        return bytes(self.size)


def request_images(*sources: Any) -> list[RequestImage]:
    return [RequestImage(f"messages.{index}", source) for index, source in enumerate(sources)]


def sources(per_file: int = 100, total: int = 1000, **fields: Any) -> ImageSources:
    return ImageSources(MediaSourcesConfig(**fields), per_file=per_file, total=total)


async def test_what_is_here_stays_as_it_is() -> None:
    images = request_images("YQ==", b"a", None, "data:image/png;base64,YQ==")
    assert await sources().fetch_images(images) == images


async def test_files_come_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"file")
    images = request_images(Uploaded(3), "YQ==", f"file://{tmp_path}/a.png")
    fetched = await sources(folder=str(tmp_path)).fetch_images(images)
    assert [image.source for image in fetched] == [bytes(3), "YQ==", b"file"]
    assert [image.where for image in fetched] == [image.where for image in images]


@pytest.mark.parametrize("address", ["http://a/b", "https://a/b", "file:///etc/passwd", "ftp://a/b", "s3://a/b"])
async def test_nothing_is_fetched_unless_it_is_allowed(address: str) -> None:
    with pytest.raises(ApiError, match="messages.1: this server fetches no such addresses") as caught:
        await sources().fetch_images(request_images("YQ==", address))
    assert (caught.value.status, caught.value.param) == (400, "messages.1")


async def test_refusals_name_the_image(tmp_path: Path) -> None:
    allowed = sources(domains=("example.com",), folder=str(tmp_path))
    for address, words in (
        ("http://other.com/", "does not fetch from 'other.com'"),
        ("file:///etc/passwd", "is not in the folder"),
        ("ftp://example.com/a", "fetches no such addresses"),
    ):
        with pytest.raises(ApiError, match=f"messages.1: .*{words}"):
            await allowed.fetch_images(request_images(b"", address))


async def test_all_together_are_bounded() -> None:
    assert len(await sources(total=100).fetch_images(request_images(Uploaded(50), Uploaded(50)))) == 2
    with pytest.raises(ApiError, match="messages.[012]: .*more than 100 bytes together"):
        await sources(total=100).fetch_images(request_images(Uploaded(50), Uploaded(50), Uploaded(1)))


async def test_only_some_are_read_together() -> None:
    file = Uploaded()
    await sources().fetch_images(request_images(*[file] * (CONCURRENT_FETCHES * 2)))
    assert file.max_running == CONCURRENT_FETCHES


async def test_the_first_failure_ends_the_rest() -> None:
    waiting = Uploaded(0)
    with pytest.raises(ApiError, match="messages.1"):
        await sources().fetch_images(request_images(waiting, "http://a/b"))
    assert waiting.cancelled == 1


def test_what_cannot_be_is_refused_at_the_start() -> None:
    for fields in ({"domains": ("a/b",)}, {"networks": ("x",)}, {"folder": "/none/there"}):
        with pytest.raises(ConfigError, match="--allowed-"):
            sources(**fields)


async def test_errors_of_files_are_named() -> None:
    class Broken:
        async def read(self, limit: int) -> bytes:
            raise MediaError("it is gone")

    with pytest.raises(ApiError, match="messages.0: it is gone"):
        await sources().fetch_images(request_images(Broken()))
