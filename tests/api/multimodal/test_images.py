"""Tests of images in requests: the fields that may contain them, and the refused ones."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.multimodal.images import RequestImage, images_of_messages, images_of_prompts
from sglang_plug_api.protocol.openai import Message

DATA = b"any bytes"
TEXT = base64.b64encode(DATA).decode()


@pytest.mark.parametrize(
    "source",
    [TEXT, f"data:image/png;base64,{TEXT}", f"DATA:;BASE64,{TEXT}", f"data:image/png;name=a;base64,{TEXT}", DATA]
    + [f"{TEXT[:4]}\r\n {TEXT[4:]}\n"],
)
def test_forms(source: Any) -> None:
    assert RequestImage("here", source).read(100) == DATA


@pytest.mark.parametrize(
    "source, words",
    [
        ("data:image/png,abc", "has the form"),
        ("data:image/png;base64", "has the form"),
        ("http://a/b.png", "is base64 text or a data: address"),
        ("abc", "not valid base64"),
        ("ab cd=ef", "not valid base64"),
        ("äöü", "not valid base64"),
        ("", "is empty"),
        ("data:;base64,", "is empty"),
        ({}, "is base64 text or a data: address"),
        (TEXT * 100, "more than 100 bytes"),
    ],
)
def test_refusals_name_the_path(source: Any, words: str) -> None:
    with pytest.raises(ApiError, match=words) as caught:
        RequestImage("messages.1.content.0", source).read(100)
    assert caught.value.status == 400
    assert caught.value.param == "messages.1.content.0"
    assert str(caught.value).startswith("messages.1.content.0: ")


class Uploaded:
    async def read(self, limit: int) -> bytes:
        return DATA[:limit]


@pytest.mark.parametrize(
    "source, expected",
    [("http://a", True), ("HTTPS://a", True), ("file:///a", True), ("s3://a", True), (Uploaded(), True)]
    + [(TEXT, False), (DATA, False), ("data:image/png;base64,http://", False), ("", False), (None, False)],
)
def test_needs_fetch(source: Any, expected: bool) -> None:
    assert RequestImage("here", source).needs_fetch is expected


def message(*parts: Any) -> Message:
    return Message.model_validate({"role": "user", "content": list(parts)})


def test_paths_in_messages() -> None:
    with_image = message(
        {"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x", "detail": "low"}}
    )
    again = message({"type": "image_url", "image_url": "y"}, {"type": "image_url"})
    text = Message.model_validate({"role": "user", "content": "text"})
    assert images_of_messages([with_image, text, again], supports_images=True) == [
        RequestImage("messages.0.content.1", "x"),
        RequestImage("messages.2.content.0", "y"),
        RequestImage("messages.2.content.1", None),
    ]
    assert with_image.plain()["content"] == [{"type": "text", "text": "a"}, {"type": "image"}]
    with pytest.raises(ApiError, match="messages: message 0 has a content part of type 'image_url'; this model takes"):
        images_of_messages([with_image], supports_images=False)


@pytest.mark.parametrize(
    "image_data, prompts, batch, expected",
    [
        (None, 2, True, [[], []]),
        ([], 2, True, [[], []]),
        ("", 1, False, [[]]),
        ("x", 1, False, [["image_data"]]),
        (["x", "y"], 1, False, [["image_data.0", "image_data.1"]]),
        (["x", None, ["y", "z"]], 3, True, [["image_data.0"], [], ["image_data.2.0", "image_data.2.1"]]),
    ],
)
def test_image_data(image_data: Any, prompts: int, batch: bool, expected: list[list[str]]) -> None:
    result = images_of_prompts(image_data, prompts, batch=batch)
    assert [[image.where for image in images] for images in result] == expected


@pytest.mark.parametrize("image_data, words", [("x", "one image for 2 prompts"), (["x"], "1 entries for 2 prompts")])
def test_image_data_must_fit_the_batch(image_data: Any, words: str) -> None:
    with pytest.raises(ApiError, match=words):
        images_of_prompts(image_data, 2, batch=True)
