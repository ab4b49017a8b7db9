"""Checks of the results of cells of published documents: the shape of answers, and words that are known."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from .document_models import demo, embedding, score

FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n\n"
)
CHAT = {"id", "object", "created", "model", "choices", "usage"}
CHOICE = {"index", "message", "logprobs", "finish_reason", "matched_stop"}
META = {"id", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens"}
SERVER = {"model_path", "tokenizer_path", "tokenizer_mode", "load_format", "dtype", "max_total_num_tokens"}


@dataclass
class Notebook:
    """A document after some of its cells: variables, printed text, and the models that replace the named ones."""

    models: Mapping[str, Path]
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "notebook"})
    printed: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.names[name]


def is_chat(answer: Any, words: str) -> None:
    """Check that a JSON object is a chat completion with one choice."""
    assert answer.keys() == CHAT
    (choice,) = answer["choices"]
    assert choice.keys() == CHOICE
    assert (choice["message"]["role"], choice["message"]["tool_calls"]) == ("assistant", None)
    assert choice["finish_reason"] == "stop" and words in choice["message"]["content"]
    assert answer["usage"]["prompt_tokens_details"] is None
    assert answer["model"] == str(demo())


def is_generated(answer: Any) -> None:
    """Check that a JSON object is an answer of ``/generate``."""
    assert answer["text"] and answer["meta_info"].keys() >= META
    assert answer["meta_info"]["finish_reason"]["type"] in ("stop", "length")


def is_completion(answer: Any, limit: int) -> None:
    """Check that an object of the ``openai`` client is a completion with one choice of at most ``limit`` tokens."""
    (choice,) = answer.choices
    assert answer.object == "text_completion" and choice.finish_reason in ("stop", "length")
    assert choice.text and 0 < answer.usage.completion_tokens <= limit


def is_stream_of_the_call_before(book: Notebook) -> None:
    assert ast.literal_eval(book.printed["In [6]"])["text"] == book.printed["In [7]"]
    assert "Paris" in book.printed["In [7]"]


def is_server_info(book: Notebook) -> None:
    assert book["response"].json().keys() >= SERVER


def is_sampled(book: Notebook) -> None:
    (choice,) = book["response"].choices
    assert choice.message.content and book["response"].usage.completion_tokens <= 128


def is_answered(book: Notebook) -> None:
    state = book["state"]
    assert state["answer"] and state.get_meta_info("answer")["finish_reason"]["type"] in ("stop", "length")
    assert [message["role"] for message in state.messages()] == ["system", "user", "assistant"]


def is_story(book: Notebook) -> None:
    is_completion(book["response"], 150)
    assert not {"\n\n", "THE END"} & set(re.findall("\n\n|THE END", book["response"].choices[0].text))


def are_batch_results(book: Notebook) -> None:
    assert [result["custom_id"] for result in book["results"]] == ["request-1", "request-2"]
    for result in book["results"]:
        assert result["response"]["status_code"] == 200
        assert result["response"]["body"]["choices"][0]["message"]["content"]
    counts = book["batch_response"].request_counts
    assert (counts.total, counts.completed, counts.failed) == (2, 2, 0)


def is_batch_under_way(book: Notebook) -> None:
    details = book["batch_details"]
    assert details.status in ("in_progress", "finalizing", "completed")
    assert (details.request_counts.total, details.request_counts.failed) == (20, 0)
    assert details.input_file_id == book["uploaded_file"].id


def is_cancelled(book: Notebook) -> None:
    assert book["cancelled_job"].request_counts.total == 5000
    assert book["del_response"].deleted and not Path("batch_requests.jsonl").exists()


def is_embedding(book: Notebook) -> None:
    actual = book["response_json"]["embedding"]
    assert len(actual) == 32
    expected = embedding(book.models["Alibaba-NLP/gte-Qwen2-7B-instruct"], book["data"]["text"])
    assert actual == pytest.approx(expected, abs=1e-4)


def are_rewards(book: Notebook) -> None:
    folder = book.models["Skywork/Skywork-Reward-Llama-3.1-8B-v0.2"]
    rewards = [response["embedding"][0] for response in book["responses"]]
    assert rewards == pytest.approx([score(folder, prompt) for prompt in book["prompts"]], abs=1e-4)
    assert rewards[0] != pytest.approx(rewards[1], abs=1e-3)


def are_ranks(book: Notebook) -> None:
    query, documents = book["data"]["query"], book["data"]["documents"]
    expected = {document: score(book.models["BAAI/bge-reranker-v2-m3"], query, document) for document in documents}
    assert [item["document"] for item in book["response_json"]] == sorted(
        documents, key=lambda document: -expected[document]
    )
    assert [item["score"] for item in book["response_json"]] == pytest.approx(sorted(expected.values())[::-1], abs=1e-4)


def is_made_of_tokens(book: Notebook) -> None:
    answer = book["output"]
    assert book["output_text"] and answer["meta_info"]["completion_tokens"] == len(book["output_tokens"])
    assert answer["meta_info"]["prompt_tokens"] == len(book["input_tokens"])
    assert answer["meta_info"]["finish_reason"]["type"] in ("stop", "length")


def is_character(book: Notebook) -> None:
    if book["state"].get_meta_info("json_output")["finish_reason"]["type"] == "stop":
        assert re.fullmatch(book["character_regex"], book["state"]["json_output"])
        assert json.loads(book["state"]["json_output"]).keys() >= {"name", "house", "wand", "patronus"}
    else:
        assert book["state"]["json_output"].startswith('{\n    "name": "')


def is_summary(book: Notebook) -> None:
    assert book["state"].error() is None and book["state"]["summary"]
    assert [message["content"][:6] for message in book["state"].messages()[2:4]] == ["Tip 1:", "Tip 2:"]


def is_streamed_conversation(book: Notebook) -> None:
    assert book.printed["In [11]"] == book["state"].text()
    assert book.printed["In [11]"].startswith("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n")


Check = Callable[[Notebook], None]
NATIVE: dict[str, Check] = {"In [2]": lambda book: is_generated(book["response"].json()), "In [4]": is_server_info}
CHECKS: Mapping[str, Mapping[str, Check]] = {
    "quick-start": {
        "In [2]": lambda book: is_chat(book["response"], "Paris"),
        "In [3]": lambda book: is_chat(book["response"].json(), "Paris"),
        "In [4]": lambda book: is_chat(book["response"].model_dump(exclude_unset=True), "France - Paris"),
        "In [6]": lambda book: is_generated(book["response"].json()),
        "In [7]": is_stream_of_the_call_before,
    },
    "openai-completions": {
        "In [2]": lambda book: is_chat(book["response"].model_dump(exclude_unset=True), "France - Paris"),
        "In [3]": is_sampled,
        "In [5]": lambda book: is_completion(book["response"], 64),
        "In [6]": is_story,
        "In [8]": are_batch_results,
        "In [9]": is_batch_under_way,
        "In [10]": is_cancelled,
    },
    "native-api-2025-02": {**NATIVE, "In [11]": is_embedding, "In [14]": are_rewards, "In [17]": is_made_of_tokens},
    "native-api-2025-12": {**NATIVE, "In [12]": is_embedding, "In [15]": are_ranks, "In [18]": are_rewards},
    "frontend-language": {
        "In [4]": is_answered,
        "In [7]": is_summary,
        "In [9]": is_character,
        "In [11]": is_streamed_conversation,
    },
}
"""The check of the state after each cell of each document."""

NATIVE_PRINTS = {"In [5]": r"\n", "In [6]": r"\n", "In [7]": re.escape(FLUSHED), "In [9]": r".*repository not found.*"}
PRINTS: Mapping[str, Mapping[str, str]] = {
    "quick-start": {"In [5]": r"Here are 3 countries and their capitals:\s.*Germany - Berlin.*"},
    "openai-completions": {
        "In [4]": r".+",
        "In [7]": r"Batch job created with ID: batch_[\w-]+\n",
        "In [9]": r"Created batch job with ID: .*(Batch job details .*){5}",
        "In [10]": r".*Batch job successfully cancelled\nSuccessfully cleaned up input file\nSuccessfully deleted .*",
    },
    "native-api-2025-02": NATIVE_PRINTS,
    "native-api-2025-12": {
        **NATIVE_PRINTS,
        "In [15]": r"(Score: -?\d+\.\d\d - Document: '.*?'\n){2}",
        "In [21]": r"<Response \[200\]>\n\{'text': .*\}\n<Response \[200\]>\n<Response \[200\]>\n",
        "In [24]": r".*Round Trip Successful: Original and reconstructed text match.\n",
    },
    "frontend-language": {
        "In [5]": r".+\n.+\n",
        "In [6]": r"calculator\n.+\n",
        "In [8]": r"((25[0-5]|2[0-4]\d|[01]?\d\d?).){3}(25[0-5]|2[0-4]\d|[01]?\d\d?)\n",
        "In [10]": r"(Answer \d: [^\n]+\n){3}",
        "In [12]": r".+\n",
    },
}
"""The regular expression for the output of each cell of each document."""


def check(document: str, cell: str, book: Notebook) -> None:
    """Check what a cell printed and its variables, as far as they are known."""
    pattern = PRINTS[document].get(cell)
    if pattern is not None:
        assert re.fullmatch(pattern, book.printed[cell], re.DOTALL), (cell, pattern, book.printed[cell])
    CHECKS[document].get(cell, lambda book: None)(book)
