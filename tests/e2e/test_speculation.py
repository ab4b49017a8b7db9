"""A server with n-gram speculation generates the same outputs as one without, in fewer steps."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from .servers import refused_start

REPEATED = "one two three four five six seven eight nine ten. " * 6 + "Again: one two three four"
QUESTIONS = (REPEATED, "The capital of France is")
LOOP = {"temperature": 0, "logit_bias": {"50": 100}, "max_new_tokens": 40, "ignore_eos": True}
"""Parameters of an output that repeats one token, which n-gram drafts predict."""


@pytest.fixture(scope="module")
def drafting(module_launcher: Any) -> Any:
    return module_launcher.in_thread(
        "--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "5", "--set", "ngram.min_match=1",
        "--decode-log-interval", "1",
    )  # fmt: skip


def bodies() -> list[dict[str, Any]]:
    requests: list[dict[str, Any]] = []
    for number, text in enumerate(QUESTIONS):
        for params in (
            LOOP,
            {"temperature": 0, "max_new_tokens": 60, "ignore_eos": True},
            {"temperature": 1.5, "logit_bias": {"50": 6, "51": 5}, "sampling_seed": number, "max_new_tokens": 40},
            {"temperature": 0.8, "top_k": 20, "sampling_seed": 5 + number, "max_new_tokens": 40, "ignore_eos": True},
            {"temperature": 0, "frequency_penalty": 0.3, "max_new_tokens": 20},
            {"temperature": 0, "max_new_tokens": 40, "stop": ["six"]},
            {"temperature": 0, "regex": "(one|two|three| )+", "max_new_tokens": 12},
        ):
            requests.append({"text": text, "sampling_params": params})
        requests.append({**requests[0], "text": text, "return_logprob": True, "top_logprobs_num": 2})
    return requests


def contents(answer: Any) -> tuple[Any, ...]:
    meta = answer["meta_info"]
    chosen = [token for _, token, _ in meta.get("output_token_logprobs", [])]
    return answer["text"], answer["output_ids"], meta["finish_reason"], meta["completion_tokens"], chosen


def test_it_says_what_a_server_without_drafts_says(drafting: Any, server: Any) -> None:
    plain = [server.generate(body) for body in bodies()]
    with ThreadPoolExecutor(6) as pool:
        drafted = list(pool.map(drafting.generate, bodies()))
    for body, answer, other in zip(bodies(), plain, drafted, strict=True):
        assert contents(other) == contents(answer), body
        numbers = [number for number, _, _ in answer["meta_info"].get("output_token_logprobs", [])]
        others = [number for number, _, _ in other["meta_info"].get("output_token_logprobs", [])]
        assert others == pytest.approx(numbers, abs=1e-3)
    drafting.wait_whole()
    metas = [answer["meta_info"] for answer in drafted]
    loops = [meta for body, meta in zip(bodies(), metas, strict=True) if body["sampling_params"] is LOOP]
    assert all(meta["spec_num_correct_drafts"] > 20 and meta["spec_accept_length"] > 2 for meta in loops)
    for body, meta in zip(bodies(), metas, strict=True):
        if "frequency_penalty" in body["sampling_params"] or "regex" in body["sampling_params"]:
            assert "spec_verify_ct" not in meta
    assert not any("spec_verify_ct" in answer["meta_info"] for answer in plain)


def test_a_stream_has_all_tokens_in_order(drafting: Any) -> None:
    body = {"text": REPEATED, "sampling_params": LOOP}
    whole = drafting.generate(body)
    events = drafting.events("/generate", body)
    assert events[-1]["text"] == whole["text"] and events[-1]["output_ids"] == whole["output_ids"]
    assert len(events) < 20, "some events bring several tokens"


def test_several_outputs_of_one_request_are_what_they_are_alone(drafting: Any, server: Any) -> None:
    bias = {"50": 6, "51": 5}
    params = {"temperature": 1.5, "logit_bias": bias, "sampling_seed": 3, "n": 3, "max_new_tokens": 30}
    body = {"text": REPEATED, "sampling_params": params}
    drafted, plain = drafting.generate(body), server.generate(body)
    assert [answer["output_ids"] for answer in drafted] == [answer["output_ids"] for answer in plain]


def counted(metrics: str, name: str) -> float:
    (line,) = [line for line in metrics.splitlines() if line.startswith(f"sglang:{name}{{")]
    return float(line.rsplit(" ", 1)[1])


def test_the_log_the_metrics_and_the_info_tell_of_drafts(drafting: Any) -> None:
    before = drafting.get("/metrics").text
    drafting.generate({"text": REPEATED, "sampling_params": LOOP})
    after = drafting.get("/metrics").text
    assert "accept len: " in drafting.log
    for name in ("drafted", "accepted"):
        assert counted(after, f"spec_{name}_tokens_total") >= counted(before, f"spec_{name}_tokens_total") + 20
    chosen = drafting.info()["components"]["drafter"]
    assert (chosen["name"], chosen["reason"]) == ("ngram", "named by the configuration")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--speculative-algorithm", "EAGLE"), "no drafter named 'eagle'"),
        (("--speculative-algorithm", "ngram", "--is-embedding"), "there is nothing to guess"),
        (("--speculative-algorithm", "ngram", "--set", "ngram.min_match=0"), "min_match is 0"),
    ],
)
def test_what_cannot_be_is_refused_at_start(flags: tuple[str, ...], message: str) -> None:
    assert message in refused_start("--deployment", "thread", *flags)
