"""Tests of ``/v1/rerank``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

Fixture = Callable[..., Any]
QUERY = "what is panda?"
DOCUMENTS = ["hi", "The giant panda lives in China.", "once upon a time", "bad"]
CROSS = ["bert-reranker", "xlm-reranker"]


@pytest.mark.parametrize("name", CROSS)
def test_as_in_the_documents(name: str, served: Fixture, tiny: Fixture) -> None:
    app, model = served(name), tiny(name)
    ranking = app.answer("/v1/rerank", {"model": "any/name", "query": QUERY, "documents": DOCUMENTS})
    assert sorted(entry["index"] for entry in ranking) == [0, 1, 2, 3]
    scores = [entry["score"] for entry in ranking]
    assert scores == sorted(scores, reverse=True) and len(set(scores)) == 4
    for entry in ranking:
        document = DOCUMENTS[entry["index"]]
        assert entry["document"] == document
        assert entry["score"] == pytest.approx(model.logits(QUERY, document)[0], abs=1e-5)
        assert entry["meta_info"]["prompt_tokens"] == len(model.tokens(QUERY, document))
    assert app.is_whole()


def test_the_two_texts_of_a_pair_are_told_apart(tiny: Fixture) -> None:
    """Token types change the score of the tiny model, which the test above relies on."""
    model = tiny("bert-reranker")
    tokens = torch.tensor([model.tokens(QUERY, DOCUMENTS[1])])
    with torch.inference_mode():
        without = model.model(input_ids=tokens).logits[0, 0].item()
    assert abs(without - model.logits(QUERY, DOCUMENTS[1])[0]) > 1e-3


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank"])
def test_jinas_form(path: str, served: Fixture, tiny: Fixture) -> None:
    app, model = served("xlm-reranker"), tiny("xlm-reranker")
    body = {"model": "m", "query": QUERY, "documents": [{"text": document} for document in DOCUMENTS], "top_n": 2}
    answer = app.answer(f"{path}?format=jina", body)
    best = sorted(range(4), key=lambda index: -model.logits(QUERY, DOCUMENTS[index])[0])[:2]
    assert [result["index"] for result in answer["results"]] == best
    for result in answer["results"]:
        assert result["document"] == {"text": DOCUMENTS[result["index"]]}
        score = torch.tensor(model.logits(QUERY, DOCUMENTS[result["index"]])[0]).sigmoid().item()
        assert result["relevance_score"] == pytest.approx(score, abs=1e-5)
    assert answer["model"] == "m" and answer["id"].startswith("rerank-")
    assert answer["usage"]["prompt_tokens"] == sum(len(model.tokens(QUERY, document)) for document in DOCUMENTS)
    assert app.refusal(f"{path}?format=cohere", body)["param"] == "format"


def test_documents_can_be_left_out(served: Fixture) -> None:
    app = served("xlm-reranker")
    body = {"query": QUERY, "documents": DOCUMENTS, "return_documents": False, "top_n": 100}
    assert [set(entry) for entry in app.answer("/v1/rerank", body)] == [{"score", "index", "meta_info"}] * 4
    assert [set(result) for result in app.answer("/v1/rerank?format=jina", body)["results"]] == [
        {"index", "relevance_score"}
    ] * 4


@pytest.mark.parametrize(
    "wrong",
    [
        {"query": ""},
        {"query": "  "},
        {"documents": []},
        {"documents": ["hi", ""]},
        {"documents": [5]},
        {"documents": "hi"},
        {"top_n": 0},
        {"instruct": "find bears"},
        {"documents": ["hi", "panda " * 60]},
    ],
)
def test_refusals(wrong: dict[str, Any], served: Fixture) -> None:
    app = served("xlm-reranker")
    app.refusal("/v1/rerank", {"query": QUERY, "documents": DOCUMENTS, **wrong})
    assert app.is_whole()


def test_a_long_document_is_named(served: Fixture) -> None:
    body = {"query": QUERY, "documents": ["hi", "panda " * 60]}
    assert served("xlm-reranker").refusal("/v1/rerank", body)["message"].startswith("documents[1]: The input (")


def test_several_labels_cannot_sort(served: Fixture) -> None:
    body = {"query": QUERY, "documents": DOCUMENTS}
    assert "3 scores" in served("labels").refusal("/v1/rerank", body)["message"]


def test_a_chat_model_is_asked(served: Fixture, tiny: Fixture) -> None:
    """A chat model gets the prompt of the reranking template; the score compares the logits of "yes" and "no"."""
    app, model = served("decoder", is_embedding=False), tiny("decoder")
    documents = ["hi", "the giant panda"]
    ranking = app.answer("/v1/rerank", {"query": "panda", "documents": documents, "instruct": "good"})
    yes, no = model.tokens("yes")[0], model.tokens("no")[0]
    for entry in ranking:
        system = (
            "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
            'Note that the answer can only be "yes" or "no".'
        )
        user = f"<Instruct>: good\n<Query>: panda\n<Document>: {documents[entry['index']]}"
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        prompt = model.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        with torch.inference_mode():
            logits = model.model(input_ids=torch.tensor([model.tokens(prompt)])).logits[0, -1]
        assert entry["score"] == pytest.approx((logits[yes] - logits[no]).sigmoid().item(), abs=1e-5)
        assert entry["meta_info"]["prompt_tokens"] == len(model.tokens(prompt))
    answer = app.answer("/v1/rerank?format=jina", {"query": "panda", "documents": documents, "instruct": "good"})
    assert [result["relevance_score"] for result in answer["results"]] == pytest.approx(
        [entry["score"] for entry in ranking]
    )


def test_requests_with_different_salts_share_no_prefix(served: Fixture) -> None:
    app = served("decoder", is_embedding=False)
    body = {"query": "once upon a time", "documents": ["panda"], "instruct": "bad bear"}
    rankings = [app.answer("/v1/rerank", {**body, "cache_salt": salt}) for salt in ("a", "a", "b")]
    rankings.append(app.answer("/v1/rerank", {**body, "extra_key": "b"}))
    cached = [ranking[0]["meta_info"]["cached_tokens"] > 0 for ranking in rankings]
    assert cached == [False, True, False, True]


def test_a_model_without_the_answers_is_not_asked(app: Any) -> None:
    tokenizer = app.engine.tokenizer
    assert len(tokenizer.encode("yes", special=False)) != 1 or len(tokenizer.encode("no", special=False)) != 1
    message = app.refusal("/v1/rerank", {"query": QUERY, "documents": DOCUMENTS})["message"]
    assert "no single token for each of 'yes' and 'no'" in message


def close(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return results with a tolerance, for comparison with a request whose documents are in other batches."""
    return [{**result, "relevance_score": pytest.approx(result["relevance_score"], abs=1e-6)} for result in results]


def test_coheres_form(served: Fixture, tiny: Fixture) -> None:
    app = served("xlm-reranker")
    body = {"model": "m", "query": QUERY, "documents": DOCUMENTS, "top_n": 3}
    answer, other = app.answer("/v2/rerank", body), app.answer("/v1/rerank?format=jina", body)
    assert answer["results"] == close(other["results"]) and answer.keys() == other.keys()
    assert all(0 < result["relevance_score"] < 1 for result in answer["results"])
    assert app.refusal("/v2/rerank", {**body, "rank_fields": ["title"]})["param"] == "rank_fields"


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank"])
def test_the_first_version_of_coheres_client(path: str, served: Fixture, tiny: Fixture) -> None:
    app = served("xlm-reranker")
    body = {"model": "m", "query": QUERY, "documents": DOCUMENTS}
    headers = {"X-Fern-SDK-Name": "cohere", "X-Client-Name": "ours"}
    answer = app.post(path, body, headers=headers).json()
    assert answer["results"] == close(app.answer("/v2/rerank", body)["results"])
    assert isinstance(app.post(f"{path}?format=list", body, headers=headers).json(), list)
    assert isinstance(app.post(path, body, headers={"X-Fern-SDK-Name": "other"}).json(), list)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank"])
def test_clients_of_vllm_are_known_by_their_field(path: str, served: Fixture, tiny: Fixture) -> None:
    app = served("xlm-reranker")
    body = {"query": QUERY, "documents": DOCUMENTS, "truncate_prompt_tokens": -1}
    answer = app.answer(path, body)
    assert answer["results"] == close(app.answer("/v2/rerank", body)["results"])
    assert answer["usage"]["prompt_tokens"] > 0
    assert isinstance(app.answer(f"{path}?format=list", body), list)
    assert isinstance(app.answer(path, {**body, "truncate_prompt_tokens": None}), list)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank"])
def test_texts_of_text_embeddings_inference(path: str, served: Fixture, tiny: Fixture) -> None:
    app, model = served("xlm-reranker"), tiny("xlm-reranker")
    body = {"query": QUERY, "texts": DOCUMENTS}
    ranking = app.answer(path, body)
    assert [set(entry) for entry in ranking] == [{"index", "score"}] * 4
    raw = app.answer(path, {**body, "raw_scores": True, "return_text": True})
    assert [entry["index"] for entry in raw] == [entry["index"] for entry in ranking]
    for entry, plain in zip(raw, ranking, strict=True):
        assert entry["text"] == DOCUMENTS[entry["index"]]
        logit = torch.tensor(model.logits(QUERY, entry["text"])[0])
        assert entry["score"] == pytest.approx(logit.item(), abs=1e-5)
        assert plain["score"] == pytest.approx(logit.sigmoid().item(), abs=1e-5)
    long = {**body, "texts": ["panda " * 100, "hi"]}
    assert "longer than the model's context length" in app.refusal(path, long)["message"]
    assert len(app.answer(path, {**long, "truncate": True})) == 2
    assert app.refusal(path, {**body, "documents": DOCUMENTS})["param"] == "texts"
    for name in ("raw_scores", "return_text", "truncate"):
        assert app.refusal(path, {"query": QUERY, "documents": DOCUMENTS, name: True})["param"] == name
    assert app.refusal(path, {"query": QUERY})["message"] == "documents: Field required"


@pytest.mark.parametrize("name", CROSS)
def test_documents_are_cut(name: str, served: Fixture, tiny: Fixture) -> None:
    """Long documents are truncated; the query and the special tokens stay."""
    app, model = served(name), tiny(name)
    long = "panda " * 100 + "china"
    body = {"query": QUERY, "documents": [long, "hi"]}
    assert "longer than the model's context length" in app.refusal("/v1/rerank", body)["message"]
    path = "/v1/rerank?format=list"
    by_index = {entry["index"]: entry for entry in app.answer(path, {**body, "truncate_prompt_tokens": -1})}
    limit = app.info["context_length"]
    assert by_index[0]["meta_info"]["prompt_tokens"] == limit
    words = limit - len(model.tokens(QUERY, "hi")) + 1
    kept = model.logits(QUERY, "panda " * words)[0]
    assert by_index[0]["score"] == pytest.approx(kept, abs=1e-5) and by_index[0]["document"] == long
    from_left = app.answer(path, {**body, "truncate_prompt_tokens": 20, "truncation_side": "left"})
    assert {entry["index"]: entry["meta_info"]["prompt_tokens"] for entry in from_left}[0] == 20
    per_document = app.answer("/v1/rerank", {**body, "max_tokens_per_doc": 3})
    scores = {entry["index"]: entry["score"] for entry in per_document}
    assert scores[0] == pytest.approx(model.logits(QUERY, "panda panda panda")[0], abs=1e-5)
    assert app.refusal("/v1/rerank", {**body, "max_tokens_per_doc": -1})["param"] == "max_tokens_per_doc"
    whole = app.refusal("/v1/rerank", {**body, "max_tokens_per_doc": 0})
    assert "longer than the model's context length" in whole["message"]
    assert app.is_whole()
