"""Each API key is a separate caller, and only some callers see objects of others."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import Request

from sglang_plug_api.http.auth import guard
from sglang_plug_api.options.config import ServerConfig
from sglang_plug_api.service.callers import Caller, Callers, acting_as, current_caller, owner_id
from sglang_plug_api.text.job import Job

KEYS = ServerConfig(api_keys=("a", "b"), admin_api_key="admin")


def caller_with(*headers: tuple[bytes, bytes], config: ServerConfig = KEYS) -> Caller:
    """Return the caller that a route derives from the headers of a request."""

    async def serve() -> Caller:
        await guard("user", config)(Request({"type": "http", "headers": list(headers)}))
        return current_caller()

    return asyncio.run(serve())


def bearer(key: bytes) -> tuple[bytes, bytes]:
    return (b"authorization", b"Bearer " + key)


def test_a_key_is_the_same_caller_in_every_spelling_and_after_a_restart() -> None:
    assert caller_with(bearer(b"a")) == caller_with((b"x-api-key", b"a")) == Caller(owner_id("a"), can_access_all=False)
    assert caller_with((b"authorization", b"bearer  a ")) == caller_with(bearer(b"a"))
    assert caller_with(bearer(b"b")).owner != caller_with(bearer(b"a")).owner
    assert owner_id("a") == owner_id("a") and len(owner_id("a")) == 32


def test_the_first_valid_key_says_who_it_is() -> None:
    a = caller_with(bearer(b"a"))
    assert caller_with(bearer(b"a"), (b"x-api-key", b"b")) == a
    assert caller_with(bearer(b"a"), (b"x-api-key", b"admin")) == a
    assert caller_with(bearer(b"wrong"), (b"x-api-key", b"a")) == a


def test_the_admin_sees_all_and_other_keys_their_own() -> None:
    admin, a = caller_with(bearer(b"admin")), caller_with(bearer(b"a"))
    assert admin.scope is None and admin.may_use(a.owner) and admin.may_use("")
    assert a.scope == a.owner and a.may_use(a.owner)
    assert not a.may_use(admin.owner) and not a.may_use("")


@pytest.mark.parametrize("config", [ServerConfig(), ServerConfig(admin_api_key="admin")])
def test_without_api_keys_everybody_is_one_caller(config: ServerConfig) -> None:
    assert caller_with(config=config) == caller_with(bearer(b"admin"), config=config) == Caller("", can_access_all=True)
    assert not Callers(config).scoped


def test_shared_storage_lets_every_key_see_all() -> None:
    config = ServerConfig(api_keys=("a", "b"), shared_storage=True)
    assert caller_with(bearer(b"a"), config=config) == Caller(owner_id("a"), can_access_all=True)


def test_a_batch_runs_as_its_owner() -> None:
    callers = Callers(KEYS)
    assert callers.of_owner(owner_id("a")) == caller_with(bearer(b"a"))
    assert callers.of_owner(owner_id("admin")).can_access_all
    assert not callers.of_owner(owner_id("a key that was taken away")).can_access_all
    assert not callers.of_owner("").can_access_all  # made when there were no keys


async def test_a_job_knows_who_asked_for_it_wherever_it_runs() -> None:
    caller = Caller("x", can_access_all=False)
    with acting_as(caller):
        job = Job(tokens=[1], id="id")
        assert await asyncio.create_task(_caller_of_a_task()) == caller
    assert current_caller() == Caller()
    assert (job.caller, job.engine_id) == (caller, "x/id")
    assert Job(tokens=[1], id="id").engine_id == "id"


async def _caller_of_a_task() -> Caller:
    return current_caller()
