"""Which experts a served model chooses: counted, or kept for each token."""

from __future__ import annotations

import csv
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sglang_plug.batch import ForwardBatch
from sglang_plug.request import RequestError

from .moe import Router

logger = logging.getLogger(__name__)

DTYPES = {torch.int64: "I64", torch.int16: "I16"}
MODES = ("stat", "per_token")
MOST_BYTES = 1 << 28
"""What the choices of single tokens may take of the host's memory; counting goes on beyond it."""


class ExpertRecorder:
    """Watches the routers of one model between ``start`` and ``stop``; otherwise they are left alone.

    What is recorded is what is computed: tokens found in the prefix cache pass no router, tokens of a retracted
    sequence pass them twice.

    Args:
        routers: those of all layers that have one.
        most_bytes: limit of the choices kept in mode ``per_token``.
    """

    def __init__(self, routers: Iterable[Router], *, most_bytes: int = MOST_BYTES) -> None:
        self._routers = list(routers)
        self._most_bytes = most_bytes
        self._record: Record | None = None
        self._active = False

    def controls(self) -> Mapping[str, Callable[..., Any]]:
        """The control calls of a model that can be recorded."""
        return {
            "start_expert_record": self.start,
            "stop_expert_record": self.stop,
            "dump_expert_record": self.dump,
        }

    def begin(self, batch: ForwardBatch) -> None:
        """Tell that the model is about to compute ``batch``."""
        if self._active and self._record is not None and self._record.tokens is not None:
            self._record.tokens.begin(batch)

    def start(self, mode: str = "stat") -> dict[str, Any]:
        """Record from now on, after ``stop`` in continuation of the same record.

        ``stat`` counts for each layer and expert; ``per_token`` also keeps the choices of every token. Raises
        ``RequestError`` if there is no such mode, or an undumped record of the other one.
        """
        if mode not in MODES:
            raise RequestError(f"no recorder mode {mode!r}; known: {', '.join(MODES)}")
        if not self._routers:
            raise RequestError("no layer of the model has experts")
        if self._record is None:
            self._record = Record(self._routers, self._most_bytes if mode == "per_token" else None)
        elif self._record.mode != mode:
            raise RequestError(f"a record in mode {self._record.mode!r} was begun; dump it first")
        for router in self._routers:
            router.watcher = self._record.take
        self._active = True
        logger.info("Start recording expert distribution. mode=%s", mode)
        return {"mode": mode}

    def stop(self) -> dict[str, Any]:
        """Record no more; what was recorded is kept until it is dumped."""
        self._active = False
        for router in self._routers:
            router.watcher = None
        logger.info("Stop recording expert distribution.")
        return {}

    def dump(self, folder: str) -> dict[str, Any]:
        """Write the record to two files in ``folder``, and begin a new one if recording goes on.

        ``expert_distribution_<unix time>.csv`` has a line ``layer_id,expert_id,count`` for each expert, the
        ``.safetensors`` file of the same name the tensors of ``Record.tensors``. Raises ``RequestError`` if nothing was
        recorded, or if the files cannot be written; the record is kept then.
        """
        record = self._record
        if record is None:
            raise RequestError("no expert distribution was recorded; start recording first")
        path = Path(folder) / f"expert_distribution_{time.time():.6f}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            files = record.write(path)
        except OSError as error:
            raise RequestError(f"the expert distribution cannot be written: {error}", 500) from error
        self._record = None
        if self._active:
            self.start(record.mode)
        logger.info("Dump expert distribution record. files=%s", ", ".join(files))
        return {"files": files}


class Record:
    """Counts for each layer and expert, and in mode ``per_token`` the choices of every token."""

    def __init__(self, routers: list[Router], most_bytes: int | None) -> None:
        self.layers = [router.layer for router in routers]
        self.experts = [router.experts for router in routers]
        self._rows = {layer: row for row, layer in enumerate(self.layers)}
        self._counts: dict[int, Tensor] = {}
        self.tokens = None if most_bytes is None else TokenRecord(self.layers, most_bytes)

    @property
    def mode(self) -> str:
        """The mode it was begun in."""
        return "stat" if self.tokens is None else "per_token"

    def take(self, layer: int, experts: Tensor) -> None:
        """A layer's choices ``[T, k]``."""
        chosen = experts.flatten()
        if layer not in self._counts:
            self._counts[layer] = chosen.new_zeros(self.experts[self._rows[layer]])
        self._counts[layer].index_add_(0, chosen, torch.ones_like(chosen))
        if self.tokens is not None:
            self.tokens.take(layer, experts)

    def counts(self) -> Tensor:
        """``[layers, experts]`` int64 on the host: how many tokens each expert was chosen for."""
        table = torch.zeros(len(self.layers), max(self.experts), dtype=torch.int64)
        for layer, counts in self._counts.items():
            table[self._rows[layer], : len(counts)] = counts.cpu()
        return table

    def tensors(self) -> dict[str, Tensor]:
        """``layers`` ``[L]``, ``counts`` ``[L, E]``, and what ``TokenRecord.tensors`` has."""
        found = {"layers": torch.tensor(self.layers), "counts": self.counts()}
        return found if self.tokens is None else {**found, **self.tokens.tensors()}

    def write(self, path: Path) -> list[str]:
        """Write the ``.csv`` and the ``.safetensors`` file; their names."""
        table, data = f"{path}.csv", f"{path}.safetensors"
        tensors = self.tensors()
        with open(table, "x", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("layer_id", "expert_id", "count"))
            for layer, experts, counts in zip(self.layers, self.experts, tensors["counts"].tolist(), strict=True):
                writer.writerows((layer, expert, count) for expert, count in enumerate(counts[:experts]))
        write_safetensors(Path(data), tensors)
        return [table, data]


class TokenRecord:
    """The choices of every token, as far as they fit into ``most_bytes``."""

    def __init__(self, layers: list[int], most_bytes: int) -> None:
        self._layers, self._most_bytes = layers, most_bytes
        self._steps: list[dict[str, Tensor]] = []
        self._open: dict[str, Tensor] | None = None
        self._chosen: dict[int, Tensor] = {}
        self._bytes = self._dropped = self._number = 0

    def begin(self, batch: ForwardBatch) -> None:
        """The next choices belong to ``batch``."""
        self._finish()
        rows = torch.arange(len(batch.query_lens)).repeat_interleave(torch.tensor(batch.query_lens))
        self._open = {
            "input_ids": batch.input_ids.cpu(),
            "positions": batch.positions.cpu(),
            "rows": rows,
            "steps": torch.full_like(rows, self._number),
        }
        self._number += 1

    def take(self, layer: int, experts: Tensor) -> None:
        """A layer's choices ``[T, k]``."""
        self._chosen[layer] = experts.to(torch.int16)

    def tensors(self) -> dict[str, Tensor]:
        """For each token: ``input_ids``, ``positions``, ``steps`` (number of the step it was computed in) and
        ``rows`` (its sequence in that step), all ``[N]``, and ``experts`` ``[N, layers, k]``. ``dropped_tokens``
        is how many more there were than fit into memory."""
        self._finish()
        names = self._steps[0] if self._steps else ()
        found = {name: torch.cat([step[name] for step in self._steps]) for name in names}
        return {**found, "dropped_tokens": torch.tensor(self._dropped)}

    def _finish(self) -> None:
        """Keep the last step, unless it failed before its last layer."""
        step, chosen, self._open, self._chosen = self._open, self._chosen, None, {}
        if step is None or len(chosen) < len(self._layers):
            return
        experts = torch.stack([chosen[layer] for layer in self._layers], dim=1)
        size = experts.numel() * experts.element_size()
        if self._bytes + size > self._most_bytes:
            if not self._dropped:
                logger.warning("Expert choices of single tokens fill %d bytes; no more are kept", self._bytes)
            self._dropped += len(experts)
            return
        self._bytes += size
        self._steps.append({**step, "experts": experts.cpu()})


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors of whole numbers: the length of a JSON header in 8 bytes, the header, and the numbers."""
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)  # the numbers begin at a multiple of their size
    with open(path, "xb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for tensor in tensors.values():
            file.write(tensor.contiguous().numpy().tobytes())
