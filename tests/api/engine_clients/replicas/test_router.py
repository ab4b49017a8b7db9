"""The router asks replicas again only when something has changed, and never chooses one that does not serve."""

from __future__ import annotations

from collections.abc import Sequence

from sglang_plug import ReplicaLoad, Request
from sglang_plug_api.engine_clients.replicas.checked_routing import CheckedRouting
from sglang_plug_api.engine_clients.replicas.replica import Replica
from sglang_plug_api.engine_clients.replicas.router import HEARTBEAT_TIMEOUT, POLL_SECONDS, Router

from .scripted_replica import ScriptedReplica


class Counting(ScriptedReplica):
    """A replica that counts how often its ``seconds_without_heartbeat`` is read."""

    probes = 0

    @property
    def heartbeat_age(self) -> float:
        self.probes += 1
        return self.seconds_without_heartbeat


class First:
    """A routing policy that chooses the first replica."""

    def choose(self, request: Request, replicas: Sequence[ReplicaLoad]) -> int:
        return replicas[0].replica


class Cluster:
    def __init__(self, count: int) -> None:
        self.clients = [Counting(number) for number in range(count)]
        self.now = 5.0
        replicas = [Replica(number, client) for number, client in enumerate(self.clients)]
        self.router = Router(replicas, CheckedRouting(First(), "first"), lambda: self.now)

    def choose(self, *tried: int) -> int | None:
        replica = self.router.choose(Request(id="a", tokens=(1,)), tried)
        return None if replica is None else replica.replica


async def test_replicas_are_asked_once_in_a_while_and_not_for_each_request() -> None:
    cluster = Cluster(20)
    assert [cluster.choose() for _ in range(50)] == [0] * 50
    assert {client.probes for client in cluster.clients} == {1}
    cluster.now += POLL_SECONDS
    cluster.clients[0].seconds_without_heartbeat = HEARTBEAT_TIMEOUT + 1
    assert [cluster.choose() for _ in range(50)] == [1] * 50
    assert {client.probes for client in cluster.clients} == {2}


async def test_a_replica_that_serves_again_is_used_as_soon_as_somebody_tells() -> None:
    cluster = Cluster(3)
    cluster.clients[0].die()
    assert cluster.choose() == 1
    cluster.clients[0].serve_again()
    assert cluster.choose() == 1
    cluster.router.changed()
    assert cluster.choose() == 0


async def test_one_that_failed_unnoticed_is_not_chosen() -> None:
    cluster = Cluster(4)
    assert cluster.choose() == 0
    for number in (0, 1, 3):
        cluster.clients[number].die()
    assert cluster.choose() == 2
    assert cluster.choose(2) is None
    cluster.clients[2].die()
    assert cluster.choose() is None


async def test_when_all_lively_ones_were_tried_a_silent_one_is() -> None:
    cluster = Cluster(3)
    cluster.clients[2].seconds_without_heartbeat = HEARTBEAT_TIMEOUT + 1
    assert (cluster.choose(), cluster.choose(0), cluster.choose(0, 1), cluster.choose(0, 1, 2)) == (0, 1, 2, None)


async def test_without_a_serving_replica_one_is_found_as_soon_as_it_serves() -> None:
    cluster = Cluster(2)
    for client in cluster.clients:
        client.die()
    assert cluster.choose() is None
    cluster.clients[1].serve_again()
    assert cluster.choose() == 1
