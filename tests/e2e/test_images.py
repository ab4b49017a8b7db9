"""Images in requests to a real server: OpenAI's client, the native API, the frontend language, and refused requests."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from PIL import Image

from sglang_plug_api.offline.engine import Engine
from sglang_plug_lang import RuntimeEndpoint, assistant, function, gen, image, user

from .vision_models import QWEN_IMAGE, VisionModel, make_vision_model, png

CHAT, GENERATE = "/v1/chat/completions", "/generate"
QUESTION = "What is in the image?"
WIDE, TALL = png(64, 24, 1), png(30, 70, 2)
GREEDY = {"temperature": 0, "max_new_tokens": 8}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> VisionModel:
    return make_vision_model("qwen2.5-vl", tmp_path_factory.mktemp("qwen2.5-vl-tiny"))


@pytest.fixture(scope="module")
def vision_server(model: VisionModel, module_launcher: Any) -> Any:
    """A server of a vision-language model."""
    limits = ("--max-images-per-request", "3", "--max-image-bytes", "60000", "--max-image-pixels", "10000")
    limits += ("--max-request-image-pixels", "12000")
    flags = ("--model-path", str(model.path), "--enable-cache-report", "--dtype", "float32")
    return module_launcher.in_thread(*flags, *limits)


@pytest.fixture
def client(vision_server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{vision_server.url}/v1", api_key="None", max_retries=0) as client:
        yield client


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def part(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded(data)}"}}


def user_messages(*parts: Any) -> list[dict[str, Any]]:
    return [
        {
            "role": "user",
            "content": [{"type": "text", "text": item} if isinstance(item, str) else item for item in parts],
        }
    ]


def prompt(*parts: str) -> str:
    return f"<|im_start|>user\n{''.join(parts)}<|im_end|>\n<|im_start|>assistant\n"


def expected(model: VisionModel, text: str, *images: bytes, count: int = 8) -> tuple[str, int]:
    """Return transformers' greedy answer, and the length of the prompt."""
    media_prompt = model.prompt(text, images)
    tokens, _ = model.greedy(media_prompt.tokens, images, count)
    return model.tokenizer.decode(tokens, skip_special_tokens=True), len(media_prompt.tokens)


def test_openai_chat(client: openai.OpenAI, model: VisionModel) -> None:
    answer = client.chat.completions.create(
        model="any",
        messages=user_messages(part(WIDE), QUESTION),
        max_tokens=8,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    text, length = expected(model, prompt(QWEN_IMAGE, QUESTION), WIDE)
    assert answer.choices[0].message.content == text
    assert answer.usage is not None and answer.usage.prompt_tokens == length > 24


def test_two_images_in_two_turns_and_a_stream(client: openai.OpenAI, model: VisionModel) -> None:
    messages: Any = [
        *user_messages("First: ", part(TALL)),
        {"role": "assistant", "content": "Noise."},
        *user_messages("And ", part(WIDE), "this?"),
    ]
    stream = client.chat.completions.create(
        model="any", messages=messages, max_tokens=8, temperature=0, stream=True, n=2, extra_body={"ignore_eos": True}
    )
    texts = {0: "", 1: ""}
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    history = f"<|im_start|>user\nFirst: {QWEN_IMAGE}<|im_end|>\n<|im_start|>assistant\nNoise.<|im_end|>\n"
    text, _ = expected(model, history + prompt("And ", QWEN_IMAGE, "this?"), TALL, WIDE)
    assert texts == {0: text, 1: text}


def test_generate_takes_image_data_in_every_form(vision_server: Any, model: VisionModel) -> None:
    one_image, two_images = f"{QWEN_IMAGE}Who?", f"{QWEN_IMAGE} or {QWEN_IMAGE}"
    params = {**GREEDY, "ignore_eos": True}
    wide, both = expected(model, one_image, WIDE), expected(model, two_images, WIDE, TALL)
    for images in (encoded(WIDE), [encoded(WIDE)], f"data:image/png;base64,{encoded(WIDE)}"):
        answer = vision_server.generate({"text": one_image, "image_data": images, "sampling_params": params})
        assert (answer["text"], answer["meta_info"]["prompt_tokens"]) == wide
    batch = {
        "text": [one_image, two_images, "No image"],
        "image_data": [encoded(WIDE), [encoded(WIDE), encoded(TALL)], None],
    }
    answer = vision_server.generate({**batch, "sampling_params": params})
    assert [entry["text"] for entry in answer] == [wide[0], both[0], expected(model, "No image")[0]]
    ids = vision_server.generate(
        {"input_ids": model.tokens(one_image), "image_data": encoded(WIDE), "sampling_params": params}
    )
    assert ids["text"] == wide[0]


def test_only_the_same_image_shares_its_prefix(vision_server: Any) -> None:
    text = f"{QWEN_IMAGE}{QUESTION * 4}"
    vision_server.post("/flush_cache")

    def cached(data: bytes) -> int:
        answer = vision_server.generate({"text": text, "image_data": encoded(data), "sampling_params": GREEDY})
        return answer["meta_info"]["cached_tokens"]

    same_size = png(64, 24, 9)
    assert cached(WIDE) == 0
    assert cached(same_size) == 1, "only what stands before the image is shared"
    assert cached(WIDE) == cached(same_size) == 57


def test_the_language(vision_server: Any, model: VisionModel) -> None:
    @function
    def image_qa(s: Any, image_file: bytes, question: str) -> None:
        s += user(image(image_file) + question)
        s += assistant(gen("answer", max_tokens=8, ignore_eos=True))

    state = image_qa.run(image_file=WIDE, question=QUESTION, backend=RuntimeEndpoint(vision_server.url), temperature=0)
    system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    assert state["answer"] == expected(model, system + prompt(QWEN_IMAGE, QUESTION), WIDE)[0]


def test_what_the_server_says_of_itself(vision_server: Any) -> None:
    info = vision_server.get("/model_info").json()
    assert info["has_image_understanding"] is True
    assert vision_server.info()["max_images_per_request"] == 3


REFUSED: list[tuple[Any, str]] = [
    ("data:image/png;base64,!!!!", "not valid base64"),
    ("data:image/png,plain", "has the form"),
    ("https://example.com/a.png", "fetches no such addresses"),
    ("file:///etc/passwd", "fetches no such addresses"),
    ("", "is empty"),
    (5, "base64 text or a data: address"),
    (None, "base64 text or a data: address"),
    (encoded(b"not an image"), "cannot be read as an image"),
    (encoded(WIDE[: len(WIDE) // 2]), "cannot be read as an image"),
    (encoded(png(300, 300)), "has more than 60000 bytes"),
    (encoded(png(120, 120, form="JPEG")), "120 x 120 pixels"),
    (encoded(png(16, 16, form="PPM")), "cannot be read as an image"),
    (encoded(png(4, 1000)), "aspect ratio"),
]


@pytest.mark.parametrize("image, words", REFUSED)
def test_bad_images_are_refused_by_name(vision_server: Any, image: Any, words: str) -> None:
    chat = {"messages": [{"role": "system", "content": "Look."}, *user_messages("Well?", part(WIDE), part(TALL))]}
    chat["messages"][1]["content"][2]["image_url"]["url"] = image
    answer = vision_server.post(CHAT, chat)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert words in error["message"] and error["param"] == "messages.1.content.2"
    if image:
        answer = vision_server.post(GENERATE, {"text": QWEN_IMAGE * 2, "image_data": [encoded(WIDE), image]})
        assert answer.status_code == 400 and "image_data.1" in answer.text and words in answer.text


@pytest.mark.parametrize(
    "body, words",
    [
        ({"text": "none", "image_data": "eA=="}, "placeholders for 0 images, and 1 were sent"),
        (
            {"text": QWEN_IMAGE * 2, "image_data": [encoded(png(90, 70))] * 2},
            "have 12600 pixels together; the maximum for one prompt is 12000",
        ),
        ({"text": QWEN_IMAGE * 2, "image_data": encoded(WIDE)}, "placeholders for 2 images, and 1 were sent"),
        ({"text": QWEN_IMAGE * 4, "image_data": [encoded(WIDE)] * 4}, "4 images; the maximum is 3"),
        ({"text": [QWEN_IMAGE], "image_data": encoded(WIDE)}, "one image for 1 prompts"),
        ({"text": [QWEN_IMAGE], "image_data": [encoded(WIDE)] * 2}, "2 entries for 1 prompts"),
    ],
)
def test_images_that_do_not_fit_the_prompt_are_refused(vision_server: Any, body: Any, words: str) -> None:
    answer = vision_server.post(GENERATE, body)
    assert answer.status_code == 400 and words in answer.text, answer.text
    assert vision_server.is_whole()


def test_other_parts_are_refused(vision_server: Any) -> None:
    answer = vision_server.post(CHAT, {"messages": user_messages({"type": "input_audio", "input_audio": {}})})
    assert answer.status_code == 400 and "'input_audio'" in answer.text


def test_a_model_of_text_refuses_images(server: Any) -> None:
    answer = server.post(CHAT, {"messages": user_messages("What?", part(WIDE))})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == (
        "messages: message 0 has a content part of type 'image_url'; this model takes text parts only"
    )
    assert server.get("/model_info").json()["has_image_understanding"] is False


def test_the_offline_engine(model: VisionModel, tmp_path: Path) -> None:
    text, length = expected(model, f"{QWEN_IMAGE}Who?", WIDE)
    options = {"dtype": "float32", "device": "cpu", "max_total_tokens": 512}
    with Engine(str(model.path), **options) as engine:
        (tmp_path / "wide.png").write_bytes(WIDE)
        files = (tmp_path / "wide.png", str(tmp_path / "wide.png"))
        for image in (WIDE, encoded(WIDE), *files, [Image.open(files[0])]):
            answer: Any = engine.generate(f"{QWEN_IMAGE}Who?", {**GREEDY, "ignore_eos": True}, image_data=image)
            assert (answer["text"], answer["meta_info"]["prompt_tokens"]) == (text, length)
