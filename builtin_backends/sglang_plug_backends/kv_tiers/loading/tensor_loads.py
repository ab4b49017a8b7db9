"""Tensors of other extensions in the tiers, such as the embeddings of images."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_plug import KVBlock, pinned
from sglang_plug_backends.background_thread import background_thread
from sglang_plug_backends.kv_tiers.storage.rates import PrefillRate
from sglang_plug_backends.kv_tiers.storage.tiers import Tiers

from .prefix_loads import GRACE

logger = logging.getLogger(__name__)

LENGTH_BYTES = 4


@dataclass(slots=True, eq=False)
class TensorLoad:
    """A tensor that is being loaded, or was. A ``PendingTensor``."""

    key: bytes
    deadline: float
    """Time on ``time.monotonic`` from which on the tensor is of no use."""
    timeout: float
    """Seconds after the deadline for which a load that is under way is waited for."""
    value: Tensor | None = None
    finished: bool = False
    """True once ``value`` is final."""

    @property
    def done(self) -> bool:
        """True once the tensor is loaded, cannot be loaded, or is not worth waiting for any longer."""
        return self.finished or time.monotonic() > self.deadline + self.timeout


class TensorLoads:
    """Loads tensors in the background, one after the other.

    A tensor is waited for as long as computing the tokens that it stands for would take: what computing the tensor
    itself takes is not known.

    Args:
        tiers: where tensors are loaded from.
        device: the device that they are sent to afterwards.
        prefill: how long prompts take.
        max_seconds: maximum time in seconds for one load.
        always: load whatever computing would take.
        promote: receives what came from another tier than the fastest.
    """

    def __init__(
        self,
        tiers: Tiers,
        device: torch.device,
        prefill: PrefillRate,
        *,
        max_seconds: float,
        always: bool,
        promote: Callable[[list[KVBlock]], None],
    ) -> None:
        self._tiers, self._device, self._prefill = tiers, device, prefill
        self._max_seconds, self._always, self._promote = max_seconds, always, promote
        self._queue: deque[TensorLoad] = deque()
        self._changed = threading.Condition()
        self._active: TensorLoad | None = None
        self._closed = False
        self._thread = background_thread(self._run, "kv-tensor-loads")
        self._thread.start()

    def submit(self, key: bytes, tokens: int) -> TensorLoad | None:
        """Begin to load a tensor that stands for ``tokens`` tokens; ``None`` if no tier has it, or the thread hangs."""
        if self._tiers.lookup_is_immediate and self._tiers.find([key])[0] is None:
            return None
        compute = None if self._always else self._prefill.seconds(tokens)
        seconds = self._max_seconds if compute is None else min(compute, self._max_seconds)
        with self._changed:
            now = time.monotonic()
            if self._active is not None and now > self._active.deadline + GRACE:
                return None
            load = TensorLoad(key, now + seconds, min(GRACE, seconds))
            self._queue.append(load)
            self._changed.notify()
        return load

    def close(self, seconds: float) -> None:
        """End the thread, and wait for at most so long for the load that it is at."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(seconds)

    def _run(self) -> None:
        while (load := self._next()) is not None:
            try:
                load.value = self._load(load)
            except Exception:
                logger.exception("A tensor could not be loaded")
            load.finished = True

    def _next(self) -> TensorLoad | None:
        with self._changed:
            self._active = None
            while not self._queue and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            self._active = self._queue.popleft()
            return self._active

    def _load(self, load: TensorLoad) -> Tensor | None:
        if time.monotonic() >= load.deadline or (tier := self._tiers.find([load.key])[0]) is None:
            return None
        for block in self._tiers.load([load.key], [tier], load.deadline, None):
            if block.tier != self._tiers.fastest:
                self._promote([KVBlock(load.key, block.data)])
            return pinned(decode(block.data), self._device)
        return None


def encode(tensors: Sequence[Tensor]) -> list[memoryview]:
    """Return the bytes of each of ``tensors``: the length of a header, dtype and shape as JSON, the content."""
    return [_encode(tensor) for tensor in tensors]


def encoded_bytes(tensor: Tensor) -> int:
    """Return the number of bytes of ``tensor``, encoded."""
    return LENGTH_BYTES + len(_header(tensor)) + tensor.numel() * tensor.element_size()


def _encode(tensor: Tensor) -> memoryview:
    header = _header(tensor)
    prefix = torch.frombuffer(bytearray(len(header).to_bytes(LENGTH_BYTES, "little") + header), dtype=torch.uint8)
    return torch.cat([prefix, tensor.contiguous().reshape(-1).view(torch.uint8)]).numpy().data


def _header(tensor: Tensor) -> bytes:
    return json.dumps([str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]).encode()


def decode(data: memoryview) -> Tensor:
    """Return the tensor that ``encode`` made ``data`` of."""
    start = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
    dtype, shape = json.loads(bytes(data[LENGTH_BYTES:start]))
    return torch.frombuffer(bytearray(data[start:]), dtype=torch.uint8).view(getattr(torch, dtype)).view(shape)
