"""The adapters of a served model: loading, unloading, and whose they are in a step."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Ordered
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from sglang_plug.adapters import Adapter, AdapterRequest
from sglang_plug.config import ConfigError
from sglang_plug.low_rank import AddLowRank
from sglang_plug.model import Model
from sglang_plug.plugins import PluginError
from sglang_plug.request import RequestError

from .adaptable import adaptable_layers, described
from .adapted import AdaptedProduct, AdaptedStep, CapturedStep, CurrentStep, LoadedAdapter
from .adapter_tables import AdapterTables
from .memory import is_out_of_memory
from .ranks import Ranks
from .shares import Share

logger = logging.getLogger(__name__)

LONGEST_NAME = 256
SALT_BYTES = 16
NO_ROOM = "memory does not suffice; start the server with a lower --mem-fraction-static or --max-total-tokens"

ReadAdapter = Callable[[AdapterRequest], Adapter]
"""Raises ``ConfigError`` for a folder that no format reads, or that is damaged."""


class Adapters:
    """Adapters by name, all on the device. What is unloaded stays there until the last request that has it has ended.

    Args:
        read: reads a folder.
        device: where the model is.
        dtype: what it computes in.
        most: adapters that may be loaded at once; ``None``: as many as memory holds.
    """

    def __init__(self, read: ReadAdapter, *, device: torch.device, dtype: torch.dtype, most: int | None) -> None:
        self._read, self.device, self._dtype, self._most = read, device, dtype, most
        self.ranks: Ranks | None = None
        """The others that share the model, of rank 0."""
        self._numbers = count(1)
        self._leaving: dict[int, ReferenceType[LoadedAdapter]] = {}
        """What is unloaded, and may be some request's still."""
        self._loaded: dict[str, LoadedAdapter] = {}
        self._current = CurrentStep()
        self._model: Model | None = None
        self._add: AddLowRank | None = None
        self.tables: AdapterTables | None = None
        self._products: list[AdaptedProduct] = []

    @property
    def paths(self) -> dict[str, str]:
        """Name -> folder of each."""
        return {name: one.path for name, one in self._loaded.items()}

    def capture_by(self, add: AddLowRank | None) -> None:
        """Before ``install``: let steps with adapters be captured that ``add`` applies; ``None``: none can be."""
        self._add = add

    def install(self, model: Model) -> Model:
        """Let the adapters work on ``model``, whose weights are loaded, instead of the one before; returns it.

        Raises ``ConfigError`` if it has no layer that adapters could change.
        """
        layers = adaptable_layers(model)
        if not layers:
            raise ConfigError(
                f"{type(model).__name__} has no layers that adapters could change; leave out --enable-lora"
            )
        self._model, self._products = model, []
        if self.tables is None and self._add is not None:
            described_layers = described(model, layers)
            self.tables = AdapterTables(self._add, described_layers, dtype=self._dtype, device=self.device)
        for name, layer in layers.items():
            layer.wrap_product(lambda multiply, name=name: self._product(name, multiply))  # type: ignore[misc]
        return model

    def load_first(self, paths: Ordered[str]) -> None:
        """Load what the configuration names, ``name=folder`` or a folder. Raises ``ConfigError``."""
        for given in paths:
            name, equals, path = given.partition("=")
            if not equals:
                name, path = Path(given).resolve().name, given
            try:
                self.load(name, path)
            except RequestError as error:
                raise ConfigError(f"--lora-paths {given}: {error}") from error

    def load(self, name: str, path: str) -> dict[str, Any]:
        """Read the folder ``path`` and let requests use it as ``name`` from now on.

        Raises ``RequestError`` if that cannot be: then nothing has changed.
        """
        try:
            self._check(name)
            started = time.perf_counter()
            number = next(self._numbers)
            adapter = self.read(path) if self.ranks is None else self._read_together(self.ranks, number, path)
        except PluginError:
            raise
        except ConfigError as error:
            raise RequestError(f"adapter {name!r} was not loaded: {error}") from error
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise RequestError(f"adapter {name!r} was not loaded: {NO_ROOM} ({error})") from error
        self._loaded[name] = self._entered(name, path, adapter, number)
        logger.info("Adapter %r is loaded from %s, %.2f s", name, path, time.perf_counter() - started)
        return self._answer()

    def unload(self, name: str) -> dict[str, Any]:
        """Forget an adapter; requests that have it already keep it to their end. Raises ``RequestError``."""
        found = self._loaded.pop(self.find(name).name)
        self._leaving[found.number] = ref(found)
        del found
        self.forget()
        self._let_go()
        logger.info("Adapter %r is unloaded", name)
        return self._answer()

    def find(self, name: str) -> LoadedAdapter:
        """The adapter of that name. Raises ``RequestError`` if it is not loaded."""
        if (found := self._loaded.get(name)) is None:
            known = ", ".join(map(repr, self._loaded)) or "none"
            raise RequestError(f"no adapter {name[:LONGEST_NAME]!r} is loaded; loaded: {known}", 404)
        return found

    def computing(self, shares: Ordered[Share], counts: Ordered[int]) -> AbstractContextManager[None]:
        """While a step of ``shares``, which have ``counts`` new tokens, is being computed: its adapters are at work."""
        owners = [share.sequence.adapter for share in shares]
        if not any(owners):
            return nullcontext()
        return self.at_work(owners, counts)

    def at_work(self, owners: Ordered[LoadedAdapter | None], counts: Ordered[int]) -> AbstractContextManager[None]:
        """While a step is being computed whose sequences, of ``counts`` new tokens, have ``owners``."""
        return self._current.being(AdaptedStep(owners, counts, self.device))

    def forget(self) -> None:
        """Hold on to no adapter but those that are loaded."""
        for product in self._products:
            product.forget()

    def capturing(self, which: Tensor) -> AbstractContextManager[None]:
        """While a step is being captured whose tokens have the adapters at the places ``which``."""
        assert self.tables is not None
        return self._current.being(CapturedStep(which, self.tables))

    def controls(self) -> Mapping[str, Callable[..., Any]]:
        """Control calls."""
        return {
            "load_adapter": lambda adapter, path: self.load(adapter, path),
            "unload_adapter": lambda adapter: self.unload(adapter),
        }

    def _read_together(self, ranks: Ranks, number: int, path: str) -> Adapter:
        """As ``read``, of all ranks or none."""
        self._let_go()
        ranks.load_adapter(number, path)
        try:
            found = self.read(path)
        except Exception:
            ranks.agreed(False, self.device)
            raise
        if not ranks.agreed(True, self.device):
            raise ConfigError("another rank could not read its part of it; its lines in the log tell why")
        return found

    def _let_go(self) -> None:
        """Let other ranks forget what is no request's any more."""
        for number in [number for number, found in self._leaving.items() if found() is None]:
            del self._leaving[number]
            if self.ranks is not None:
                self.ranks.forget_adapter(number)

    def _entered(self, name: str, path: str, adapter: Adapter, number: int) -> LoadedAdapter:
        place = 0 if self.tables is None else self.tables.put(name, adapter.layers)
        salt = secrets.token_hex(SALT_BYTES)
        found = LoadedAdapter(name, path, salt, adapter.layers, adapter.facts, place, number)
        if self.tables is not None and place:
            self.tables.keep(place, found)
        return found

    def _product(self, name: str, multiply: Any) -> AdaptedProduct:
        self._products.append(AdaptedProduct(name, multiply, self._current))
        return self._products[-1]

    def read(self, path: str) -> Adapter:
        """What the folder ``path`` holds for this rank's part of the model. Raises ``ConfigError``."""
        if not Path(path).is_dir():
            raise ConfigError(f"{path!r} is not a folder; adapters are read from folders of the server's machine")
        assert self._model is not None
        layers = described(self._model, adaptable_layers(self._model))
        with torch.inference_mode():
            return self._read(AdapterRequest(path=Path(path), layers=layers, device=self.device, dtype=self._dtype))

    def _check(self, name: str) -> None:
        if not name or len(name) > LONGEST_NAME or ":" in name or not name.isprintable():
            raise ConfigError(f"a name has 1 to {LONGEST_NAME} printable characters, none of them a colon")
        if name in self._loaded:
            raise ConfigError(f"there is one of that name, from {self._loaded[name].path}; unload it first")
        if self._most is not None and len(self._loaded) >= self._most:
            raise ConfigError(f"{self._most} adapters are loaded, which is the most (--max-loaded-loras); unload one")

    def _answer(self) -> dict[str, Any]:
        return {"adapters": self.paths}
