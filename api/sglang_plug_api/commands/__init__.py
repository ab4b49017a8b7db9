"""The commands of ``sglang-plug``."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import CommandSpec, hookimpl

COMMANDS = "sglang_plug_api.commands"


@hookimpl
def register_commands() -> Iterator[CommandSpec]:
    yield CommandSpec(name="serve", target=f"{COMMANDS}.serve:command", summary="serve a model over HTTP")
    yield CommandSpec(name="plugins", target=f"{COMMANDS}.plugins:command", summary="list, show and check plugins")
    yield CommandSpec(name="experts", target=f"{COMMANDS}.experts:command", summary="plot recorded expert choices")
    yield CommandSpec(name="version", target=f"{COMMANDS}.version:command", summary="versions of what is installed")
