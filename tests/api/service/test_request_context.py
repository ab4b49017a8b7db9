"""Callers are identified by API key, user or header, and the engine receives no key."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from sglang_plug import ConfigError, Plugins, RequestError
from sglang_plug_api.options.parsing import server_config
from sglang_plug_api.protocol.embeddings import EmbeddingsBody, RerankBody
from sglang_plug_api.protocol.native import GenerateBody
from sglang_plug_api.protocol.openai import ChatBody
from sglang_plug_api.protocol.responses import ResponsesBody
from sglang_plug_api.protocol.score import ScoreBody
from sglang_plug_api.service.callers import Caller, owner_id
from sglang_plug_api.service.fairness_key import FairnessKey, with_caller_weights
from sglang_plug_api.service.request_context import RequestContext, deadline_outcome, set_request_context
from sglang_plug_api.text.job import Job

A, B = Caller(owner_id("a")), Caller(owner_id("b"))
BODIES: list[Any] = [
    (GenerateBody, {"text": "x"}),
    (ChatBody, {"messages": [{"role": "user", "content": "x"}]}),
    (ResponsesBody, {"input": "x"}),
    (EmbeddingsBody, {"input": "x"}),
    (RerankBody, {"query": "x", "documents": ["y"]}),
    (ScoreBody, {"text_1": "x", "text_2": "y"}),
]


def body(user: str | None = None, **fields: Any) -> GenerateBody:
    return GenerateBody.model_validate({"text": "x", "user": user, **fields})


def caller(kind: str, who: Caller, headers: dict[str, str] | None = None, **fields: Any) -> str | None:
    batch = fields.pop("batch", False)
    return (
        FairnessKey(kind, has_keys=fields.pop("has_keys", True))
        .request_context(who, headers or {}, body(**fields), batch=batch)
        .caller
    )


def test_each_key_is_a_caller() -> None:
    assert caller("api-key", A, user="x") == A.owner
    assert caller("api-key", Caller()) == ""


def test_users_are_callers_of_a_server_without_keys() -> None:
    ids = {caller("auto", Caller(), user=user, has_keys=False) for user in ("x", "y", None)}
    assert len(ids) == 3 and "" in ids
    assert caller("auto", A, user="x", has_keys=True) == A.owner


def test_users_belong_to_their_key() -> None:
    ids = {caller("user", who, user=user) for who in (A, B) for user in ("x", "y", None)}
    assert len(ids) == 6 and {A.owner, B.owner} <= ids
    assert caller("user", A, user="") == A.owner
    assert "x" not in ids


def test_a_header_tells_callers_apart() -> None:
    kind = "header:X-Tenant"
    first, second = (caller(kind, Caller(), {"x-tenant": name}) for name in ("one", "two"))
    assert first and second and first != second and "one" not in first
    assert caller(kind, Caller()) == caller(kind, Caller(), user="x") == ""


@pytest.mark.parametrize("kind", ["user", "header:x-tenant"])
def test_a_batch_counts_for_its_key(kind: str) -> None:
    assert caller(kind, A, {"x-tenant": "one"}, user="x", batch=True) == A.owner


@pytest.mark.parametrize("kind", ["", "key", "header:", "header: ", "Header:x"])
def test_other_kinds_are_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match="--fairness-key must be"):
        FairnessKey(kind, has_keys=True)


def test_weights_belong_to_the_ids_of_callers() -> None:
    assert FairnessKey("api-key", has_keys=True).weights(["a=2.5"], ["a", "b"]) == {A.owner: 2.5}
    weights = FairnessKey("user", has_keys=True).weights(["x=y=3"], ["a", "b"])
    assert weights[caller("user", A, user="x=y") or ""] == weights[caller("user", B, user="x=y") or ""] == 3.0


@pytest.mark.parametrize("weight", ["secret", "secret=", "secret=0", "secret=-1", "secret=inf", "secret=nan", "=1"])
def test_wrong_weights_are_refused_without_showing_the_key(weight: str) -> None:
    with pytest.raises(ConfigError) as refused:
        FairnessKey("api-key", has_keys=True).weights([weight], ["secret"])
    assert "secret" not in str(refused.value)


def test_a_weight_of_an_unknown_key_is_refused_without_showing_it() -> None:
    with pytest.raises(ConfigError, match="1 keys") as refused:
        FairnessKey("api-key", has_keys=True).weights(["secret=2"], ["a"])
    assert "secret" not in str(refused.value)


def test_options_give_weights_to_the_engine() -> None:
    options = argparse.Namespace(api_key=["a,b"], key_weight=["a=2", "b=0.5"])
    config = with_caller_weights(server_config(options, Plugins.discover()))
    assert config.engine.schedule.caller_weights == {A.owner: 2.0, B.owner: 0.5}


@pytest.mark.parametrize(("kind", "fields"), BODIES)
def test_every_body_has_a_user_and_a_deadline(kind: Any, fields: dict[str, Any]) -> None:
    key = FairnessKey("user", has_keys=True)
    context = key.request_context(
        Caller(), {}, kind.model_validate({**fields, "user": "x", "deadline_ms": 250}), batch=False
    )
    assert context.caller and context.deadline_ms == 250


def test_the_earlier_name_of_the_context() -> None:
    job = Job(tokens=[1])
    with pytest.warns(DeprecationWarning, match=r"Job.terms is now Job.context"):
        assert job.terms is job.context


def test_jobs_have_the_context_of_their_request() -> None:
    set_request_context(RequestContext("id", 500, received=10.0))
    job = Job(tokens=[1])
    set_request_context(RequestContext())
    assert (job.engine_caller, job.context.deadline) == ("id", 10.5)
    assert (Job(tokens=[1], caller=A).engine_caller, Job(tokens=[1]).context.deadline) == (A.owner, None)


def test_a_passed_deadline_is_noticed_before_anything_is_done() -> None:
    with pytest.raises(RequestError, match="passed before the prompt was tokenized") as refused:
        RequestContext(deadline_ms=500, received=10.0).check_deadline()
    assert refused.value.status == 504
    RequestContext(deadline_ms=500_000).check_deadline()
    RequestContext(received=10.0).check_deadline()


@pytest.mark.parametrize(
    ("deadline", "finished", "reason", "refused", "outcome"),
    [
        (None, 1.0, "stop", 0, ""),
        (2.0, 1.0, "length", 0, "met"),
        (2.0, 3.0, "stop", 0, "missed"),
        (2.0, 1.0, "", 504, "refused"),
        (2.0, 1.0, "", 500, "missed"),
        (2.0, 1.0, "abort", 0, ""),
        (2.0, 3.0, "", 0, "missed"),
    ],
)
def test_the_outcome_of_a_deadline(
    deadline: float | None, finished: float, reason: str, refused: int, outcome: str
) -> None:
    assert deadline_outcome(deadline, finished, reason, refused) == outcome
