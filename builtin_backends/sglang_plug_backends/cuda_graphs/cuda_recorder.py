"""The recorder of CUDA graphs, of whole steps and of pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sglang_plug import GraphRecorder

SMALL_SIZES = (1, 2, 4)
SIZE_STEP = 8


class OpenGraph:
    """A CUDA graph whose capture begins with the construction.

    Args:
        pool: its memory pool.
    """

    def __init__(self, pool: Any) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._context = torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local")
        self._context.__enter__()

    def close(self) -> Callable[[], None]:
        """End the capture and return a function that replays the graph."""
        self._context.__exit__(None, None, None)
        replay: Callable[[], None] = self._graph.replay
        return replay


class CudaRecorder(GraphRecorder):
    """CUDA graphs, which share one pool of memory, as only one runs at a time."""

    name = "CUDA graph"
    warm_ups = 2
    exact = False

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def sizes(self, max_size: int) -> list[int]:
        """Return the batch sizes to capture: 1, 2, 4, then multiples of 8 (12 too), and ``max_size`` itself."""
        sizes = {*SMALL_SIZES, 12, *range(SIZE_STEP, max_size + 1, SIZE_STEP), max_size}
        return sorted(size for size in sizes if size <= max_size)

    def begin(self) -> None:
        """Start a new memory pool: the graphs of the old one are gone, and its memory with them."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Capture ``work`` as one graph; its intermediate tensors stay in the graphs' memory pool."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            work()
        replay: Callable[[], None] = graph.replay
        return replay

    def open(self) -> OpenGraph:
        """Begin to capture a piece of a forward pass; the pieces are replayed in the order of their captures."""
        return OpenGraph(self._pool)

    def exchange(self, call: Callable[[], None]) -> None:
        """Run a collective call; NCCL's device work is captured like any other."""
        call()

    def free_bytes(self) -> int:
        """Return the free bytes of the device as the driver counts them."""
        return torch.cuda.mem_get_info(self._device)[0]
