"""A digest of the weights that are served, computed in the background."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from sglang_plug import BuildEnv, Kernels
from sglang_plug_backends.background_thread import background_thread

logger = logging.getLogger(__name__)

CHUNK = 16 << 20
"""Bytes of a tensor that are copied to the host at once."""
CLOSE_SECONDS = 5.0
"""Seconds to wait for the thread, which ends after the part that it hashes."""
DEPTH = 4
"""Depth to which the attributes of a module are searched for tensors."""
PRODUCT_DEPTH = 10
"""Depth to which a function that multiplies by a packed matrix is searched."""
MIN_BITS = 4
"""Bits of each parameter that the tensors of its module must have after packing."""
OPAQUE = (nn.Module, BuildEnv, Kernels, ModuleType, type, str, bytes)
"""Types of values that are not searched: they hold no weights, or those of other modules."""
OPAQUE_PACKAGES = frozenset({"ctypes", "torch", "triton"})
"""Packages whose objects are not searched, except tensors."""


class WeightsDigest:
    """The digest of all tensors of a model, whole: a sample could miss a change.

    It is taken of the model in memory and not of files, which may have been replaced since they were read. Hashing
    takes about a second per GB, and leaves the interpreter to other threads.

    There is none, and the log says so, if tensors of a module cannot be reached: other weights could then have the same
    digest.

    Args:
        model: its weights are loaded, and are not changed afterwards.
        sizes: the result of ``parameter_sizes`` before the weights were loaded.
    """

    def __init__(self, model: nn.Module, sizes: Mapping[str, int] | None = None) -> None:
        self._value: bytes | None = None
        self._closed = False
        self._tensors: list[tuple[str, Tensor]] = []
        # now: others may attach adapters to the model later
        self._unreached = self._collect(model, {} if sizes is None else sizes)
        self._thread = background_thread(self._run, "kv-weights-digest")
        self._thread.start()

    @property
    def value(self) -> bytes | None:
        """The digest; ``None`` while it is not known."""
        return self._value

    def wait(self, seconds: float) -> None:
        """Wait for the digest, at most so long."""
        self._thread.join(seconds)

    def close(self) -> None:
        """End the thread, which then no longer refers to the model."""
        self._closed = True
        self._thread.join(CLOSE_SECONDS)

    def _collect(self, model: nn.Module, sizes: Mapping[str, int]) -> list[str]:
        """Collect each tensor once, and return the names of modules that lack some of their own."""
        visited, unreached = set[int](), []
        for name, module in model.named_modules():
            own = {id(tensor): (path, tensor) for path, tensor in module_tensors(name, module)}
            if sum(tensor.numel() * tensor.itemsize for _, tensor in own.values()) * 8 < sizes.get(name, 0) * MIN_BITS:
                unreached.append(name)
            self._tensors += [item for key, item in own.items() if key not in visited]
            visited.update(own)
        return unreached

    def _run(self) -> None:
        tensors, self._tensors = self._tensors, []
        if self._unreached:
            logger.warning(
                "KV stores are not used, as the packed weights of %d modules cannot be read, such as those of %s",
                len(self._unreached),
                self._unreached[0],
            )
            return
        try:
            digest = blake2b(digest_size=32)
            for name, tensor in tensors:
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
                for part in host_chunks(tensor):
                    if self._closed:
                        return
                    digest.update(part)
            self._value = digest.digest()
        except Exception:
            logger.exception("The digest of the weights failed: KV stores are not used")


def parameter_sizes(model: nn.Module) -> dict[str, int]:
    """Return how many numbers the parameters of each module have, by its path, without those of its submodules."""
    return {
        name: sum(parameter.numel() for parameter in module.parameters(recurse=False))
        for name, module in model.named_modules()
    }


def module_tensors(name: str, module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a module without its submodules, with names; some of them more than once.

    They are its parameters, buffers, those in its other attributes, and those that its products hold.
    """
    for key, value in sorted(vars(module).items()):
        if key not in ("_modules", "training"):
            yield from _tensors(f"{name}.{key}", value, DEPTH)
    for key in ("product", "products"):  # of Linear, and of Stacked
        yield from _tensors(f"{name}.{key}", getattr(module, key, None), PRODUCT_DEPTH, into_functions=True)


def _tensors(name: str, value: Any, depth: int, *, into_functions: bool = False) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        if value.device.type != "meta":
            yield name, value
        return
    if depth == 0 or isinstance(value, OPAQUE):
        return
    for key, item in _items(value) or (_parts(value) if into_functions else []):
        yield from _tensors(f"{name}.{key}", item, depth - 1, into_functions=into_functions)


def _items(value: Any) -> list[tuple[Any, Any]]:
    """Return the parts of a container or a dataclass; nothing for any other object."""
    if isinstance(value, Mapping):
        return sorted(value.items(), key=lambda item: str(item[0]))
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        attributes = getattr(value, "__dict__", None)  # read as they are: a property may raise any error
        return [(name, getattr(value, name, None) if attributes is None else attributes.get(name)) for name in names]
    return []


def _parts(value: Any) -> list[tuple[str, Any]]:
    """Return what a function or an object refers to: arguments bound in advance, closures, defaults, attributes."""
    if isinstance(value, partial):
        return [("func", value.func), ("args", value.args), ("keywords", value.keywords)]
    if isinstance(value, MethodType):
        return [("self", value.__self__), ("function", value.__func__)]
    if isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        bound = [(name, cell.cell_contents) for name, cell in cells if cell != CellType()]
        return [*bound, ("defaults", value.__defaults__), ("kwdefaults", value.__kwdefaults__)]
    if type(value).__module__.partition(".")[0] in OPAQUE_PACKAGES:
        return []
    slots = [name for kind in type(value).__mro__ for name in _slots(kind) if hasattr(value, name)]
    return [*sorted(getattr(value, "__dict__", {}).items()), *((name, getattr(value, name)) for name in slots)]


def _slots(kind: type) -> Sequence[str]:
    """Return the names of the slots that a class defines."""
    names = vars(kind).get("__slots__", ())
    return [name for name in ((names,) if isinstance(names, str) else names) if not name.startswith("__")]


def host_chunks(tensor: Tensor) -> Iterator[memoryview]:
    """Yield the content of a tensor in row-major order, as bytes on the host."""
    if tensor.numel() == 0:
        return
    if tensor.layout != torch.strided:  # a blocked layout of the CPU
        tensor = tensor.to_dense()
    tensor = tensor.detach()
    flat = tensor.reshape(-1) if tensor.is_contiguous() else tensor.contiguous().reshape(-1)
    flat = flat.view(torch.uint8) if flat.dtype != torch.bool else flat.to(torch.uint8)
    for start in range(0, flat.numel(), CHUNK):
        yield flat[start : start + CHUNK].cpu().numpy().data
