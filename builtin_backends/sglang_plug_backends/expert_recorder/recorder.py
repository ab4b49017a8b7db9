"""Recording of the experts that a served model chooses: counts, or the choices of each token."""

from __future__ import annotations

import csv
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from sglang_plug import AsyncHostCopy, ForwardBatch, RequestError
from sglang_plug.layers import Router

from .columns import COLUMNS

logger = logging.getLogger(__name__)

MODES = ("stat", "per_token")
ON_DEVICE = ("input_ids", "positions", "experts")
"""Tensors of a step that are copied from the device while it computes the next steps."""
MAX_BYTES = 1 << 28
"""Host memory for the choices of single tokens; beyond it only counts go on."""


class ExpertRecorder:
    """Records the choices of a model's routers between ``start`` and ``stop``.

    It records computed tokens: tokens from the prefix cache pass no router, and tokens of a retracted sequence pass
    them twice.

    Args:
        max_bytes: limit of the choices kept in mode ``per_token``.
    """

    def __init__(self, *, max_bytes: int = MAX_BYTES) -> None:
        self._model = nn.Module()
        self._routers: list[Router] = []
        self._hook: RemovableHandle | None = None
        self._max_bytes = max_bytes
        self._record: Record | None = None
        self._active = False

    def use(self, model: nn.Module) -> None:
        """Record the routers of ``model`` instead of earlier ones with the same layers."""
        self._unwatch()
        self._model = model
        self._routers = [module for module in model.modules() if isinstance(module, Router)]
        if self._active and self._record is not None:
            self._watch(self._record)

    def _watch(self, record: Record) -> None:
        """Let ``record`` be told of each step of the model; nothing is called while no record is taken."""
        self._unwatch()
        for router in self._routers:
            router.watcher = record.take
        if (tokens := record.tokens) is not None:
            self._hook = self._model.register_forward_pre_hook(lambda model, inputs: tokens.begin(*inputs))

    def _unwatch(self) -> None:
        for router in self._routers:
            router.watcher = None
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def controls(self) -> Mapping[str, Callable[..., Any]]:
        """Return the control calls of a model that can be recorded; none without routers."""
        if not self._routers:
            return {}
        return {
            "start_expert_record": self.start,
            "stop_expert_record": self.stop,
            "dump_expert_record": self.dump,
        }

    def start(self, mode: str = "stat") -> dict[str, Any]:
        """Start recording, or continue the same record after ``stop``.

        ``stat`` counts for each layer and expert; ``per_token`` also keeps the choices of every token. Raises
        ``RequestError`` if there is no such mode, or a record of the other mode has not been dumped.
        """
        if mode not in MODES:
            raise RequestError(f"no recorder mode {mode!r}; known: {', '.join(MODES)}")
        if self._record is None:
            self._record = Record(self._routers, self._max_bytes if mode == "per_token" else None)
        elif self._record.mode != mode:
            raise RequestError(f"a record in mode {self._record.mode!r} was begun; dump it first")
        self._watch(self._record)
        self._active = True
        logger.info("Start recording expert distribution. mode=%s", mode)
        return {"mode": mode}

    def stop(self) -> dict[str, Any]:
        """Stop recording; the record is kept until it is dumped."""
        self._active = False
        self._unwatch()
        logger.info("Stop recording expert distribution.")
        return {}

    def dump(self, folder: str) -> dict[str, Any]:
        """Write the record to two files in ``folder``, and begin a new one if recording continues.

        ``expert_distribution_<unix time>.csv`` has a line ``layer_id,expert_id,count`` for each expert; the ``.pt``
        file of the same name has the tensors of ``Record.tensors``, for ``torch.load(file, weights_only=True)``. Raises
        ``RequestError`` if nothing was recorded, or if the files cannot be written; the record is kept then.
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

    def __init__(self, routers: list[Router], max_bytes: int | None) -> None:
        self.layers = [router.layer for router in routers]
        self.experts = [router.experts for router in routers]
        self._rows = {layer: row for row, layer in enumerate(self.layers)}
        self._counts: dict[int, Tensor] = {}
        self.tokens = None if max_bytes is None else TokenRecord(self.layers, max_bytes)

    @property
    def mode(self) -> str:
        """The mode of the record."""
        return "stat" if self.tokens is None else "per_token"

    def take(self, layer: int, experts: Tensor) -> None:
        """Record a layer's choices ``[T, k]``."""
        chosen = experts.flatten()
        if layer not in self._counts:
            self._counts[layer] = chosen.new_zeros(self.experts[self._rows[layer]])
        self._counts[layer].index_add_(0, chosen, torch.ones_like(chosen))
        if self.tokens is not None:
            self.tokens.take(layer, experts)

    def counts(self) -> list[Tensor]:
        """Return for each layer the number of tokens of each expert, int64 on the host."""
        zeros = [torch.zeros(experts, dtype=torch.int64) for experts in self.experts]
        return [self._counts.get(layer, zero).cpu() for layer, zero in zip(self.layers, zeros, strict=True)]

    def tensors(self) -> dict[str, Tensor]:
        """Return the record as tensors, by name.

        ``layer_id``, ``expert_id`` and ``count`` have a row for each expert; ``layers`` ``[L]`` are the layers with
        experts. The tensors of ``TokenRecord.tensors`` are added in mode ``per_token``.
        """
        layers, experts = torch.tensor(self.layers), torch.tensor(self.experts)
        columns = {
            "layer_id": layers.repeat_interleave(experts),
            "expert_id": torch.cat([torch.arange(count) for count in self.experts]),
            "count": torch.cat(self.counts()),
            "layers": layers,
        }
        return columns if self.tokens is None else {**columns, **self.tokens.tensors()}

    def write(self, path: Path) -> list[str]:
        """Write the ``.csv`` and the ``.pt`` file; return their names."""
        table, data = f"{path}.csv", f"{path}.pt"
        tensors = self.tensors()
        with open(table, "x", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows(zip(*(tensors[name].tolist() for name in COLUMNS), strict=True))
        with open(data, "xb") as file:
            torch.save(tensors, file)
        return [table, data]


class TokenRecord:
    """The choices of every token, up to ``max_bytes``."""

    def __init__(self, layers: list[int], max_bytes: int) -> None:
        self._layers, self._max_bytes = layers, max_bytes
        self._steps: list[dict[str, Tensor]] = []
        self._open: dict[str, Tensor] | None = None
        self._pending: deque[tuple[dict[str, Tensor], AsyncHostCopy]] = deque()
        self._chosen: dict[int, Tensor] = {}
        self._bytes = self._dropped = self._number = 0

    def begin(self, batch: ForwardBatch) -> None:
        """Assign the next choices to ``batch``."""
        self._finish()
        rows = torch.arange(len(batch.query_lens)).repeat_interleave(torch.tensor(batch.query_lens))
        self._open = {
            "input_ids": batch.input_ids,
            "positions": batch.positions,
            "rows": rows,
            "steps": torch.full_like(rows, self._number),
        }
        self._number += 1

    def take(self, layer: int, experts: Tensor) -> None:
        """Record a layer's choices ``[T, k]``."""
        self._chosen[layer] = experts.to(torch.int16)

    def tensors(self) -> dict[str, Tensor]:
        """Return tensors with a row for each token.

        ``input_ids``, ``positions``, ``steps`` (number of the step that computed it) and ``rows`` (its sequence in that
        step) are ``[N]``, ``experts`` is ``[N, layers, k]``. ``dropped_tokens`` is the number of tokens that did not
        fit into memory.
        """
        self._finish()
        self._keep(wait=True)
        names = self._steps[0] if self._steps else ()
        tensors = {name: torch.cat([step[name] for step in self._steps]) for name in names}
        return {**tensors, "dropped_tokens": torch.tensor(self._dropped)}

    def _finish(self) -> None:
        """Store the last step, unless it failed before its last layer."""
        step, chosen, self._open, self._chosen = self._open, self._chosen, None, {}
        if step is None or len(chosen) < len(self._layers):
            return
        experts = torch.stack([chosen[layer] for layer in self._layers], dim=1)
        size = experts.numel() * experts.element_size()
        if self._bytes + size > self._max_bytes:
            if not self._dropped:
                logger.warning("Expert choices of single tokens fill %d bytes; no more are kept", self._bytes)
            self._dropped += len(experts)
            return
        self._bytes += size
        step["experts"] = experts
        moved = {name: tensor for name, tensor in step.items() if name in ON_DEVICE}
        self._pending.append((step, AsyncHostCopy.of(*moved.values())))
        self._keep(wait=False)

    def _keep(self, *, wait: bool) -> None:
        """Store the steps whose copies have arrived from the device, or, if ``wait``, all of them."""
        while self._pending and (wait or self._pending[0][1].ready):
            step, fetched = self._pending.popleft()
            on_host = dict(zip([name for name in step if name in ON_DEVICE], fetched.read(), strict=True))
            pinned = fetched.event is not None
            self._steps.append(
                {**step, **{name: tensor.clone() if pinned else tensor for name, tensor in on_host.items()}}
            )
