"""The conformance test of KV stores accepts stores that transfer blocks, and names the faults of others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from sglang_plug import KVBlock, KVBlockPart, KVTransferStore
from sglang_plug.testing import check_kv_store
from sglang_plug.testing.serving.kv_transfer import check_transfers
from sglang_plug_backends.kv_stores.host import HostStore
from sglang_plug_backends.kv_stores.settings import HostSettings


class Local(HostStore, KVTransferStore):
    """A correct store, which sends blocks to other stores of the same process."""

    def __init__(self, folder: Path, capacity: int) -> None:
        super().__init__(HostSettings(bytes=capacity))
        self.complete = set[str]()
        STORES[self.address] = self

    @property
    def address(self) -> str:
        return f"local {id(self)}"

    def send(self, keys: Sequence[bytes], address: str, completes: str = "") -> None:
        receiver = STORES[address]
        receiver.store([KVBlock(key, self._blocks[key]) for key in keys if key in self._blocks])
        if completes:
            receiver.complete.add(completes)

    def received(self, transfer: str) -> bool:
        is_complete = transfer in self.complete
        self.complete.discard(transfer)
        return is_complete

    def close(self) -> None:
        del STORES[self.address]


STORES: dict[str, Local] = {}


class OneAddress(Local):
    @property
    def address(self) -> str:
        return "local"

    def close(self) -> None:
        STORES.pop("local", None)


class CompletesEarly(Local):
    def send(self, keys: Sequence[bytes], address: str, completes: str = "") -> None:
        super().send(keys, address, completes)
        STORES[address].complete.add("first")


class NeverCompletes(Local):
    def send(self, keys: Sequence[bytes], address: str, completes: str = "") -> None:
        super().send(keys, address)


class NeedsBlocks(Local):
    def send(self, keys: Sequence[bytes], address: str, completes: str = "") -> None:
        super().send(keys, address, completes if keys else "")


class TellsTwice(Local):
    def received(self, transfer: str) -> bool:
        return transfer in self.complete


class TellsOfOthers(Local):
    def received(self, transfer: str) -> bool:
        return super().received(transfer) or (not self.complete and transfer == "second")


class Loses(Local):
    def send(self, keys: Sequence[bytes], address: str, completes: str = "") -> None:
        super().send(keys[1:], address, completes)


class Shortens(Local):
    def send(self, keys: Sequence[bytes], address: str, completes: str = "") -> None:
        STORES[address].store([KVBlock(key, self._blocks[key][:100]) for key in keys if key in self._blocks])
        super().send([], address, completes)


class Replaces(Local):
    def send(self, keys: Sequence[bytes], address: str, completes: str = "") -> None:
        STORES[address].delete(keys)
        super().send(keys, address, completes)


class StoresParts(Local):
    """Stores each part of a block as the whole block."""

    def send_parts(self, parts: Sequence[KVBlockPart], address: str) -> None:
        STORES[address].store([KVBlock(part.key, part.data) for part in parts])


class FillsParts(Local):
    """Stores a block for each part, with zeros in place of the missing parts."""

    def send_parts(self, parts: Sequence[KVBlockPart], address: str) -> None:
        for part in parts:
            content = bytearray(part.size)
            content[part.start : part.start + part.data.nbytes] = part.data
            STORES[address].store([KVBlock(part.key, memoryview(content))])


class CountsParts(Local):
    """Treats a block as complete when three parts have arrived, whichever they are."""

    def __init__(self, folder: Path, capacity: int) -> None:
        super().__init__(folder, capacity)
        self.parts: dict[bytes, list[KVBlockPart]] = {}

    def send_parts(self, parts: Sequence[KVBlockPart], address: str) -> None:
        receiver = STORES[address]
        assert isinstance(receiver, CountsParts)
        for part in parts:
            own = receiver.parts.setdefault(part.key, [])
            own.append(part)
            if len(own) == 3:
                content = bytearray(part.size)
                for other in own:
                    content[other.start : other.start + other.data.nbytes] = other.data
                receiver.store([KVBlock(part.key, memoryview(content))])


class MixesParts(Local):
    """Joins the parts of a block in reverse order of their arrival."""

    def __init__(self, folder: Path, capacity: int) -> None:
        super().__init__(folder, capacity)
        self.parts: dict[bytes, bytes] = {}

    def send_parts(self, parts: Sequence[KVBlockPart], address: str) -> None:
        receiver = STORES[address]
        assert isinstance(receiver, MixesParts)
        for part in parts:
            content = receiver.parts[part.key] = bytes(part.data) + receiver.parts.get(part.key, b"")
            if len(content) == part.size:
                receiver.store([KVBlock(part.key, memoryview(content))])


def test_a_store_that_sends_no_parts_conforms() -> None:
    check_kv_store(Local)


@pytest.mark.planted_bug("kv-store")
@pytest.mark.parametrize(
    ("store", "message"),
    [
        (OneAddress, "two stores must not receive at the same address"),
        (CompletesEarly, "received\\(\\) is true before send"),
        (NeverCompletes, "received\\(\\) is never true after send"),
        (NeedsBlocks, "never true for a transfer without blocks"),
        (TellsTwice, "must be true only once"),
        (TellsOfOthers, "a transfer that nobody has begun"),
        (Loses, "a block is missing when the transfer is complete"),
        (Shortens, "sent by send\\(\\): load\\(\\) returns a block that is not what was stored"),
        (Replaces, "present before send\\(\\): load\\(\\) returns a block that is not what was stored"),
        (StoresParts, "after send_parts\\(\\): load\\(\\) returns a block that is not complete"),
        (FillsParts, "after send_parts\\(\\): load\\(\\) returns a block that is not complete"),
        (CountsParts, "after send_parts\\(\\): load\\(\\) returns a block that is not complete"),
        (MixesParts, "after send_parts\\(\\): load\\(\\) returns a block that is not complete"),
    ],
)
def test_a_broken_transfer_is_named(store: type[Local], message: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=message):
        check_transfers(store, tmp_path, timeout=0.2)


def test_the_conformance_test_of_stores_sends_blocks_if_a_store_can() -> None:
    with pytest.raises(AssertionError, match="must be true only once"):
        check_kv_store(TellsTwice)
