"""KV stores: tiers below the prefix cache, in the host's memory, in a directory, and in other engines."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import CommandSpec, KVStoreSpec, hookimpl


@hookimpl
def register_kv_stores() -> Iterator[KVStoreSpec]:
    yield KVStoreSpec(
        name="host",
        target=f"{__name__}.host:HostStore",
        example=f"{__name__}.host:example",
        settings=f"{__name__}.settings:HostSettings",
        summary="the host's memory; the least recently used blocks are dropped",
    )
    yield KVStoreSpec(
        name="disk",
        target=f"{__name__}.disk.store:DiskStore",
        settings=f"{__name__}.settings:DiskSettings",
        example=f"{__name__}.disk.example:example",
        summary="a directory, which outlives the server and which several servers may share",
    )
    yield KVStoreSpec(
        name="transfer",
        target=f"{__name__}.transfer.store:TransferStore",
        settings=f"{__name__}.settings:TransferSettings",
        example=f"{__name__}.transfer.example:example",
        summary="the host's memory, from which prompts are sent to other engines over TCP",
    )


@hookimpl
def register_commands() -> Iterator[CommandSpec]:
    yield CommandSpec(
        name="cache",
        target=f"{__name__}.disk.command:command",
        summary="inspect and prune a directory of --kv-store disk",
    )
