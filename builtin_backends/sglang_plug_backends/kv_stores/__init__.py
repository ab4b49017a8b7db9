"""KV stores: tiers below the prefix cache, in the host's memory and in a directory."""

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


@hookimpl
def register_commands() -> Iterator[CommandSpec]:
    yield CommandSpec(
        name="cache",
        target=f"{__name__}.disk.command:command",
        summary="inspect and prune a directory of --kv-store disk",
    )
