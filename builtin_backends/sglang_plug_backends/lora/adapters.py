"""The adapters of a served model: loading them, unloading them, and applying them in a step."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from sglang_plug import (
    Adapter,
    AdapterRequest,
    ConfigError,
    ExtensionRanks,
    Model,
    PluginError,
    RequestError,
    is_out_of_memory,
    panics_as_errors,
)

from .adapter_salt import adapter_salt
from .adapter_tables import AdapterTables, AddLowRank
from .lora_batch import AdaptedProduct, AdaptedStep, CapturedStep, CurrentStep, LoadedAdapter
from .lora_layers import adaptable_layers, described

logger = logging.getLogger(__name__)

LONGEST_NAME = 256
LOAD, FORGET = "load", "forget"
"""Commands to worker ranks, followed by an adapter's number, and for ``LOAD`` its folder."""
NO_ROOM = "memory does not suffice; start the server with a lower --mem-fraction-static or --max-total-tokens"

ReadAdapter = Callable[[AdapterRequest], Adapter]
"""Reads an adapter. Raises ``ConfigError`` for a folder that no format reads, or that is damaged."""


class Adapters:
    """Adapters by name, all on the device. An unloaded one stays there until the last request that uses it has ended.

    Args:
        read: reads a folder.
        device: the model's device.
        dtype: the dtype of the model's computations.
        max_loaded: largest number of loaded adapters; ``None``: limited by memory only.
        ranks: the ranks that share the model.
    """

    def __init__(
        self,
        read: ReadAdapter,
        *,
        device: torch.device,
        dtype: torch.dtype,
        max_loaded: int | None,
        ranks: ExtensionRanks,
    ) -> None:
        self._read, self.device, self._dtype, self._max_loaded, self.ranks = read, device, dtype, max_loaded, ranks
        self._numbers = count(1)
        self._unloading: dict[int, ReferenceType[LoadedAdapter]] = {}
        """Unloaded adapters that requests may still use, by number."""
        self._loaded: dict[str, LoadedAdapter] = {}
        self._current = CurrentStep()
        self._model: Model | None = None
        self.tables: AdapterTables | None = None
        self._products: list[AdaptedProduct] = []

    @property
    def paths(self) -> dict[str, str]:
        """Folders of the loaded adapters by name."""
        return {name: adapter.path for name, adapter in self._loaded.items()}

    def install(self, model: Model, add: AddLowRank | None = None) -> Model:
        """Attach the adapters to ``model``, whose weights are loaded, instead of to the previous model; return it.

        With ``add``, which applies adapters to rows on the device, steps with adapters can be captured from now on.
        Raises ``ConfigError`` if the model has no layer that adapters could change.
        """
        layers = adaptable_layers(model)
        if not layers:
            raise ConfigError(
                f"{type(model).__name__} has no layers that adapters could change; leave out --enable-lora"
            )
        self._model, self._products = model, []
        if self.tables is None and add is not None:
            described_layers = described(model, layers)
            self.tables = AdapterTables(add, described_layers, dtype=self._dtype, device=self.device)
        for name, layer in layers.items():
            layer.wrap_product(lambda multiply, name=name: self._product(name, multiply))  # type: ignore[misc]
        return model

    def check_first(self, model: Model, paths: Ordered[str]) -> None:
        """Check the configured adapters by reading them for ``model``, whose weights are not loaded yet.

        Raises ``ConfigError`` for an adapter that ``load_first`` would refuse.
        """
        for entry in paths:
            name, path = _named(entry)
            try:
                self._check(name)
                self._read_for(model, path)
            except PluginError:
                raise
            except ConfigError as error:
                raise ConfigError(f"--lora-paths {entry}: adapter {name!r} was not loaded: {error}") from error

    def load_first(self, paths: Ordered[str]) -> None:
        """Load the configured adapters, each ``name=folder`` or a folder. Raises ``ConfigError``."""
        for entry in paths:
            name, path = _named(entry)
            try:
                self.load(name, path)
            except RequestError as error:
                raise ConfigError(f"--lora-paths {entry}: {error}") from error

    def load(self, name: str, path: str) -> dict[str, Any]:
        """Read the folder ``path`` and let requests use it as ``name`` from now on.

        Raises ``RequestError`` if it cannot be loaded: then nothing has changed.
        """
        try:
            self._check(name)
            started = time.perf_counter()
            number = next(self._numbers)
            adapter = self._read_together(number, path)
            self._loaded[name] = self._entered(name, path, adapter, number)
        except PluginError:
            raise
        except ConfigError as error:
            raise RequestError(f"adapter {name!r} was not loaded: {error}") from error
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise RequestError(f"adapter {name!r} was not loaded: {NO_ROOM} ({error})") from error
        logger.info("Adapter %r is loaded from %s, %.2f s", name, path, time.perf_counter() - started)
        return self._answer()

    def unload(self, name: str) -> dict[str, Any]:
        """Unload an adapter; requests that use it already keep it to their end. Raises ``RequestError``."""
        adapter = self._loaded.pop(self.find(name).name)
        self._unloading[adapter.number] = ref(adapter)
        del adapter
        self.forget()
        self._release_unloaded()
        logger.info("Adapter %r is unloaded", name)
        return self._answer()

    def find(self, name: str) -> LoadedAdapter:
        """Return the adapter of that name. Raises ``RequestError`` if it is not loaded."""
        if (adapter := self._loaded.get(name)) is None:
            known = ", ".join(map(repr, self._loaded)) or "none"
            raise RequestError(f"no adapter {name[:LONGEST_NAME]!r} is loaded; loaded: {known}", 404)
        return adapter

    def is_loaded(self, adapter: LoadedAdapter) -> bool:
        """Report whether new requests can name ``adapter``."""
        return self._loaded.get(adapter.name) is adapter

    def computing(self, owners: Ordered[LoadedAdapter | None], counts: Ordered[int]) -> AbstractContextManager[None]:
        """Apply the adapters ``owners`` of sequences with ``counts`` new tokens to the step computed in the context."""
        return self._current.active(AdaptedStep(owners, counts, self.device))

    def forget(self) -> None:
        """Drop references to adapters that are no longer loaded."""
        for product in self._products:
            product.forget()

    def capturing(self, tables: AdapterTables, which: Tensor) -> AbstractContextManager[None]:
        """Apply the adapters in the slots ``which`` of each token to the step captured in the context."""
        return self._current.active(CapturedStep(which, tables))

    def _read_together(self, number: int, path: str) -> Adapter:
        """Read the adapter on all ranks, or on none; see ``read``."""
        self._release_unloaded()
        self.ranks.send(json.dumps([LOAD, number, path]).encode())
        try:
            adapter = self.read(path)
        except Exception:
            self.ranks.all_ranks_succeeded(False)
            raise
        if not self.ranks.all_ranks_succeeded(True):
            raise ConfigError("another rank could not read its part of it; the log of that rank has the reason")
        return adapter

    def _release_unloaded(self) -> None:
        """Let the worker ranks drop the unloaded adapters that no request uses any more."""
        for number in [number for number, reference in self._unloading.items() if reference() is None]:
            del self._unloading[number]
            self._forget_on_ranks(number)

    def _forget_on_ranks(self, number: int) -> None:
        """Let the worker ranks drop the adapter ``number``."""
        self.ranks.send(json.dumps([FORGET, number]).encode())

    def _entered(self, name: str, path: str, adapter: Adapter, number: int) -> LoadedAdapter:
        """Return an adapter that all ranks have read, with its slot in the tables; the ranks drop it if that fails."""
        try:
            salt = adapter_salt(adapter, whole=self.ranks.size == 1)
            slot = 0 if self.tables is None else self.tables.put(name, adapter.layers)
        except Exception:
            self._forget_on_ranks(number)
            raise
        loaded = LoadedAdapter(name, path, salt, adapter.layers, adapter.facts, slot, number)
        if self.tables is not None and slot:
            self.tables.keep(slot, loaded)
        return loaded

    def _product(self, name: str, multiply: Any) -> AdaptedProduct:
        self._products.append(AdaptedProduct(name, multiply, self._current))
        return self._products[-1]

    def read(self, path: str) -> Adapter:
        """Read the folder ``path`` for this rank's part of the model. Raises ``ConfigError``."""
        assert self._model is not None
        return self._read_for(self._model, path)

    def _read_for(self, model: Model, path: str) -> Adapter:
        if not Path(path).is_dir():
            raise ConfigError(f"{path!r} is not a folder; adapters are read from folders of the server's machine")
        layers = described(model, adaptable_layers(model))
        with torch.inference_mode(), panics_as_errors():
            return self._read(AdapterRequest(path=Path(path), layers=layers, device=self.device, dtype=self._dtype))

    def _check(self, name: str) -> None:
        if not name or len(name) > LONGEST_NAME or ":" in name or not name.isprintable():
            raise ConfigError(f"a name must have 1 to {LONGEST_NAME} printable characters, and no colon")
        if name in self._loaded:
            raise ConfigError(f"an adapter of that name is loaded from {self._loaded[name].path}; unload it first")
        if self._max_loaded is not None and len(self._loaded) >= self._max_loaded:
            raise ConfigError(f"{self._max_loaded} adapters are loaded, the maximum (--max-loaded-loras); unload one")

    def _answer(self) -> dict[str, Any]:
        return {"adapters": self.paths}


def _named(entry: str) -> tuple[str, str]:
    """Split ``name=folder`` into name and folder; a folder alone gives its own name."""
    name, equals, path = entry.partition("=")
    return (name, path) if equals else (Path(entry).resolve().name, entry)
