"""SGLang's module names for sglang-plug, and a command that checks which names a program uses. Declares only."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import CommandSpec, hookimpl

api_version = 1


@hookimpl
def register_commands() -> Iterator[CommandSpec]:
    yield CommandSpec(
        name="check-sglang-program",
        target=f"{__name__}.command:command",
        summary="list the names of sglang that a program uses and sglang-compat does not provide",
    )
