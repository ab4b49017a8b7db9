"""The commands of ``sglang-plug``."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import CommandSpec, hookimpl

COMMANDS = "sglang_plug_api.commands"
BENCHMARKING = "sglang_plug_api.benchmarking"
TERMINAL = "sglang_plug_api.terminal"


@hookimpl
def register_commands() -> Iterator[CommandSpec]:
    yield CommandSpec(name="serve", target=f"{COMMANDS}.serve:command", summary="serve a model over HTTP")
    yield CommandSpec(name="bench", target=f"{BENCHMARKING}.command:command", summary="measure throughput and latency")
    yield CommandSpec(name="chat", target=f"{TERMINAL}.chat:command", summary="chat with a model in the terminal")
    yield CommandSpec(name="complete", target=f"{TERMINAL}.complete:command", summary="continue a text in the terminal")
    yield CommandSpec(name="plugins", target=f"{COMMANDS}.plugins:command", summary="list, show and check plugins")
    yield CommandSpec(
        name="completion", target=f"{TERMINAL}.completion:command", summary="print a shell completion script"
    )
    yield CommandSpec(name="download", target=f"{COMMANDS}.download:command", summary="fetch a model's files")
    yield CommandSpec(name="env", target=f"{COMMANDS}.env:command", summary="report versions, hardware and plugins")
    yield CommandSpec(name="version", target=f"{COMMANDS}.version:command", summary="print installed versions")
