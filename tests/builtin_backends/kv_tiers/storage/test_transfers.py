"""Failures of a store during transfers between engines raise no errors."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from sglang_plug import KVTransferStore
from sglang_plug_backends.kv_stores.host import HostStore
from sglang_plug_backends.kv_stores.settings import HostSettings
from sglang_plug_backends.kv_tiers.storage.transfers import Transfers


class Panic(BaseException):
    """A stand-in for the exceptions of a library written in Rust."""


class Failing(HostStore, KVTransferStore):
    """A store whose transfers all fail."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(HostSettings())
        self._error = error

    @property
    def address(self) -> str:
        return "here"

    def send(self, keys: Sequence[bytes], address: str, completes: str = "") -> None:
        raise self._error

    def received(self, transfer: str) -> bool:
        raise self._error


@pytest.fixture(params=[OSError("the network is gone"), Panic("index out of bounds")], ids=["error", "panic"])
def transfers(request: pytest.FixtureRequest) -> Transfers:
    return Transfers(Failing(request.param), seconds=10.0)


def test_blocks_that_cannot_be_sent_are_counted(transfers: Transfers) -> None:
    transfers.send([bytes(32)], "elsewhere", "a transfer")
    info = transfers.info()
    assert (info["sent"], info["send_errors"]) == (0, 1) and not transfers.reaches("elsewhere")


def test_blocks_are_not_waited_for_where_the_store_cannot_tell(
    transfers: Transfers, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        assert transfers.is_over("a transfer", time.monotonic() + 10)
    info = transfers.info()
    assert (info["received"], info["late"]) == (0, 2)
    assert caplog.text.count("are not waited for") == 1
