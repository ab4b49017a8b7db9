"""Images through every route of a real server, with popular clients, as data, from addresses and from files."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import openai
import pytest

from .servers import until
from .vision_models import QWEN_IMAGE, VisionModel, make_vision_model, png

CHAT, GENERATE, TOKENIZE, MESSAGES = "/v1/chat/completions", "/generate", "/tokenize", "/v1/messages"
QUESTION = "What is in the image?"
WIDE, TALL = png(64, 24, 1), png(30, 70, 2)
PLUGINS = Path(__file__).parents[2] / "plugins"
MAX_BYTES = 60_000
TOKENS = 8


class _Site(BaseHTTPRequestHandler):
    pages = {"/wide.png": (200, WIDE), "/large.png": (200, bytes(MAX_BYTES + 1)), "/text.png": (200, b"<html>")}

    def do_GET(self) -> None:
        status, body = self.pages.get(self.path, (302 if self.path == "/away" else 404, b""))
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        if status == 302:
            self.send_header("location", "http://169.254.169.254/latest/meta-data")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The address of a web server with images."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Site) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> VisionModel:
    return make_vision_model("qwen2.5-vl", tmp_path_factory.mktemp("qwen2.5-vl-surfaces"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the server may read images from, next to files that it must not read."""
    media = tmp_path_factory.mktemp("media")
    (media / "images").mkdir()
    (media / "images" / "wide.png").write_bytes(WIDE)
    (media / "secret.png").write_bytes(WIDE)
    (media / "images" / "link.png").symlink_to(media / "secret.png")
    return media / "images"


@pytest.fixture(scope="module")
def vision_server(model: VisionModel, site: str, folder: Path, module_launcher: Any) -> Any:
    flags = ["--model-path", str(model.path), "--enable-cache-report", "--dtype", "float32"]
    flags += ["--max-image-bytes", str(MAX_BYTES), "--plugins-dir", str(PLUGINS)]
    flags += ["--allowed-media-domains", site.removeprefix("http://"), "--allowed-media-networks", "127.0.0.1/32"]
    flags += ["--allowed-local-media-path", str(folder), "--file-storage-path", str(folder.parent / "storage")]
    return module_launcher.in_thread(*flags)


@pytest.fixture
def client(vision_server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{vision_server.url}/v1", api_key="None", max_retries=0) as client:
        yield client


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def address(data: bytes) -> str:
    return f"data:image/png;base64,{encoded(data)}"


def chat(*parts: str | tuple[str]) -> list[dict[str, Any]]:
    """Return a chat message of texts and, in tuples, addresses of images."""
    return [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": part}
                if isinstance(part, str)
                else {"type": "image_url", "image_url": {"url": part[0]}}
                for part in parts
            ],
        }
    ]


def user_input(*parts: str | bytes, detail: str = "auto") -> list[dict[str, Any]]:
    """Return an input item of a response with texts and, in tuples, addresses of images."""
    content = [
        {"type": "input_text", "text": part}
        if isinstance(part, str)
        else {"type": "input_image", "image_url": address(part), "detail": detail}
        for part in parts
    ]
    return [{"role": "user", "content": content}]


def prompt(*parts: str) -> str:
    return f"<|im_start|>user\n{''.join(parts)}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def expected(model: VisionModel) -> Callable[..., tuple[str, int]]:
    """Return transformers' greedy answer to a text with images, and the length of the prompt."""

    def compute(text: str, *images: bytes) -> tuple[str, int]:
        media_prompt = model.prompt(text, images)
        tokens, _ = model.greedy(media_prompt.tokens, images, TOKENS)
        return model.tokenizer.decode(tokens, skip_special_tokens=True), len(media_prompt.tokens)

    return compute


GREEDY: dict[str, Any] = {"temperature": 0, "max_output_tokens": TOKENS, "extra_body": {"ignore_eos": True}}


def test_responses(client: Any, expected: Any) -> None:
    text, length = expected(prompt(QWEN_IMAGE, QUESTION), WIDE)
    for detail in ("auto", "low", "high"):
        response = client.responses.create(model="any", input=user_input(WIDE, QUESTION, detail=detail), **GREEDY)
        assert response.output_text == text
        assert response.usage is not None and response.usage.input_tokens == length > 24
    events = list(client.responses.create(model="any", input=user_input(WIDE, QUESTION), stream=True, **GREEDY))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == text
    assert events[-1].response.usage.input_tokens == length


def test_responses_remember_images(client: openai.OpenAI, expected: Any) -> None:
    first = client.responses.create(model="any", input=user_input("One: ", TALL), **GREEDY)
    second = client.responses.create(
        model="any", input=user_input("Two: ", WIDE), previous_response_id=first.id, instructions="Look.", **GREEDY
    )
    history = f"<|im_start|>system\nLook.<|im_end|>\n<|im_start|>user\nOne: {QWEN_IMAGE}<|im_end|>\n"
    history += f"<|im_start|>assistant\n{first.output_text}<|im_end|>\n"
    text, length = expected(history + prompt("Two: ", QWEN_IMAGE), TALL, WIDE)
    assert second.usage is not None and (second.output_text, second.usage.input_tokens) == (text, length)
    third = client.responses.create(model="any", input="And?", previous_response_id=second.id, **GREEDY)
    assert first.usage is not None and third.usage is not None
    assert third.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens


def test_responses_with_uploaded_images(client: openai.OpenAI, expected: Any) -> None:
    text, length = expected(prompt(QWEN_IMAGE, QUESTION), WIDE)
    for purpose in ("vision", "user_data"):
        file = client.files.create(file=("wide.png", WIDE), purpose=purpose)  # type: ignore[arg-type]
        assert (file.purpose, file.bytes) == (purpose, len(WIDE))
        parts = [{"type": "input_image", "file_id": file.id}, {"type": "input_text", "text": QUESTION}]
        messages: Any = [{"role": "user", "content": parts}]
        response = client.responses.create(model="any", input=messages, **GREEDY)
        assert response.usage is not None and (response.output_text, response.usage.input_tokens) == (text, length)
    client.files.delete(file.id)
    with pytest.raises(openai.BadRequestError, match=f"input.0.content.0: there is no file '{file.id}' here"):
        client.responses.create(model="any", input=messages, **GREEDY)
    with pytest.raises(openai.BadRequestError, match="previous_response_id: there is no file"):
        client.responses.create(model="any", input="And?", previous_response_id=response.id, **GREEDY)


def test_files_that_are_no_images_to_show(client: openai.OpenAI) -> None:
    batch = client.files.create(file=("a.jsonl", b"{}\n"), purpose="batch")
    large = client.files.create(file=("a.png", bytes(MAX_BYTES + 1)), purpose="vision")
    text = client.files.create(file=("a.png", b"text"), purpose="vision")
    for file, words in ((batch, "has purpose 'batch'"), (large, "more than 60000 bytes"), (text, "cannot be read as")):
        messages: Any = [{"role": "user", "content": [{"type": "input_image", "file_id": file.id}]}]
        with pytest.raises(openai.BadRequestError, match=f"input.0.content.0: .*{words}"):
            client.responses.create(model="any", input=messages, **GREEDY)
    with pytest.raises(openai.BadRequestError, match="has purpose 'vision'"):
        client.batches.create(input_file_id=text.id, endpoint="/v1/chat/completions", completion_window="24h")


def test_responses_leave_out_old_images(client: Any, vision_server: Any, expected: Any) -> None:
    """``truncation`` of ``/v1/responses`` counts the tokens of images."""
    max_tokens = vision_server.info()["context_length"] - TOKENS

    def turns(words: int) -> list[Any]:
        return [
            *user_input("word " * words, TALL),
            {"role": "assistant", "content": "Yes."},
            *user_input(WIDE, QUESTION),
        ]

    def count(words: int) -> int:
        return client.responses.create(model="any", input=turns(words), **GREEDY).usage.input_tokens

    start = count(100)
    each = count(101) - start
    words = 100 + (max_tokens - start) // each  # the last that fits; with a token for each image, some more would
    fits = client.responses.create(model="any", input=turns(words), truncation="auto", **GREEDY)
    assert max_tokens - each < fits.usage.input_tokens <= max_tokens
    with pytest.raises(openai.BadRequestError, match="context length"):
        client.responses.create(model="any", input=turns(words + 1), **GREEDY)
    shorter = client.responses.create(model="any", input=turns(words + 1), truncation="auto", **GREEDY)
    text, length = expected(prompt(QWEN_IMAGE, QUESTION), WIDE)
    assert (shorter.output_text, shorter.usage.input_tokens) == (text, length)


def test_tools_may_answer_with_images(client: openai.OpenAI, expected: Any) -> None:
    call = {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"}
    answer = {"type": "function_call_output", "call_id": "1", "output": user_input(WIDE)[0]["content"]}
    response = client.responses.create(model="any", input=[*user_input("Look."), call, answer], **GREEDY)
    history = "<|im_start|>user\nLook.<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n"
    history += f"<|im_start|>tool\n{QWEN_IMAGE}<|im_end|>\n<|im_start|>assistant\n"
    assert response.output_text == expected(history, WIDE)[0]


def test_tokenize_counts_what_chat_counts(vision_server: Any, expected: Any) -> None:
    messages = chat((address(WIDE),), QUESTION)
    tokenized = vision_server.post(TOKENIZE, {"messages": messages, "return_token_strs": True}).json()
    usage = vision_server.post(CHAT, {"messages": messages, "max_tokens": 1}).json()["usage"]
    assert tokenized["count"] == len(tokenized["tokens"]) == len(tokenized["token_strs"]) == usage["prompt_tokens"]
    assert tokenized["count"] == expected(prompt(QWEN_IMAGE, QUESTION), WIDE)[1]
    refused = vision_server.post(TOKENIZE, {"messages": chat(("data:image/png;base64,YQ==",))})
    assert refused.status_code == 400 and refused.json()["param"] == "messages.0.content.0"


def test_batches(client: openai.OpenAI, expected: Any) -> None:
    params = {"model": "any", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    bodies = [{**params, "messages": chat((address(image),), QUESTION)} for image in (WIDE, TALL, b"broken")]
    lines = [
        json.dumps({"custom_id": str(index), "method": "POST", "url": CHAT, "body": body})
        for index, body in enumerate(bodies)
    ]
    file = client.files.create(file=("a.jsonl", "\n".join(lines).encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    until(lambda: client.batches.retrieve(batch.id).status in ("completed", "failed"), "the batch's end")
    batch = client.batches.retrieve(batch.id)
    assert batch.output_file_id is not None and batch.error_file_id is not None
    rows = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    texts = {row["custom_id"]: row["response"]["body"]["choices"][0]["message"]["content"] for row in rows}
    answers = (expected(prompt(QWEN_IMAGE, QUESTION), image)[0] for image in (WIDE, TALL))
    assert texts == dict(zip("01", answers, strict=True))
    assert "messages.0.content.0: it cannot be read as an image" in client.files.content(batch.error_file_id).text


def test_anthropics_messages(vision_server: Any, site: str, expected: Any) -> None:
    text, length = expected(prompt(QWEN_IMAGE, QUESTION), WIDE)
    sources = [
        {"type": "base64", "media_type": "image/png", "data": encoded(WIDE)},
        {"type": "url", "url": f"{site}/wide.png"},
    ]
    for source in sources:
        content = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
        body = {"model": "any", "messages": [{"role": "user", "content": content}]}
        counted = vision_server.post(f"{MESSAGES}/count_tokens", body).json()
        assert counted == {"input_tokens": length}
        answer = vision_server.post(MESSAGES, {**body, "max_tokens": TOKENS, "temperature": 0}).json()
        assert text.startswith(answer["content"][0]["text"]) and answer["content"][0]["text"]
        usage = answer["usage"]
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == length
    source["url"] = f"{site}/none.png"
    refused = vision_server.post(MESSAGES, {**body, "max_tokens": 1})
    assert refused.status_code == 400 and refused.json()["error"]["type"] == "invalid_request_error"
    assert "messages.0.content.0: 127.0.0.1 answers with status 404" in refused.text


def test_anthropics_own_client(vision_server: Any, expected: Any) -> None:
    anthropic = pytest.importorskip("anthropic")
    source = {"type": "base64", "media_type": "image/png", "data": encoded(WIDE)}
    content = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
    text, _ = expected(prompt(QWEN_IMAGE, QUESTION), WIDE)
    arguments: Any = {"model": "any", "max_tokens": TOKENS, "messages": [{"role": "user", "content": content}]}
    with anthropic.Anthropic(base_url=vision_server.url, api_key="none", max_retries=0) as client:
        with client.messages.stream(**arguments, extra_body={"temperature": 0}) as stream:
            assert text.startswith("".join(stream.text_stream))


def test_addresses_and_local_files(vision_server: Any, site: str, folder: Path, expected: Any) -> None:
    text, length = expected(prompt(QWEN_IMAGE, QUESTION), WIDE)
    for url in (f"{site}/wide.png", f"file://{folder}/wide.png"):
        body = {"messages": chat((url,), QUESTION), "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        answer = vision_server.post(CHAT, body).json()
        assert (answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"]) == (text, length)
        params = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
        native = {"text": prompt(QWEN_IMAGE, QUESTION), "image_data": url, "sampling_params": params}
        assert vision_server.generate(native)["text"] == text


@pytest.mark.parametrize(
    "template, words",
    [
        ("SITE/none.png", "answers with status 404"),
        ("SITE/large.png", "more than 60000 bytes"),
        ("SITE/text.png", "cannot be read as an image"),
        ("SITE/away", "does not fetch from '169.254.169.254'"),
        ("http://127.0.0.1:1/", "does not fetch from '127.0.0.1:1'"),
        ("https://example.com/a.png", "does not fetch from 'example.com'"),
        ("http://a@127.0.0.1/", "user name or password"),
        ("ftp://127.0.0.1/a", "fetches no such addresses"),
        ("file:///etc/passwd", "is not in the folder"),
        ("file://FOLDER/../secret.png", "is not in the folder"),
        ("file://FOLDER/link.png", "a link stands in its way"),
    ],
)
def test_what_is_not_fetched(vision_server: Any, site: str, folder: Path, template: str, words: str) -> None:
    url = template.replace("SITE", site).replace("FOLDER", str(folder))
    answer = vision_server.post(CHAT, {"messages": chat("Well?", (address(WIDE),), (url,))})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert words in error["message"] and error["param"] == "messages.0.content.2"


def test_nothing_is_left(vision_server: Any) -> None:
    vision_server.wait_whole()
