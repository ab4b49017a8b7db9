"""The loaded adapters. Requests use an adapter's name alone, or after the model's name and a colon."""

from __future__ import annotations

from collections.abc import Mapping

from sglang_plug import EngineClient
from sglang_plug_api.answers.errors import SHOWN, ApiError
from sglang_plug_api.service.gather import shielded

DISABLED = "adapters are not enabled: start the server with --enable-lora or --lora-paths"


class Adapters:
    """The loaded adapters, looked up by the names that requests use.

    Args:
        model: name of the served model.
        loaded: maps the names of loaded adapters to their folders; ``None``: adapters are not enabled.
        client: client of the engine that loads them.
    """

    def __init__(self, model: str, loaded: Mapping[str, str] | None, client: EngineClient) -> None:
        self._model = model
        self._client = client
        self.enabled = loaded is not None
        self.paths: dict[str, str] = dict(loaded or {})

    def is_served(self, model: str | None) -> bool:
        """Return True if ``model`` is the served model, or an adapter of it."""
        return model in (None, self._model) or (self.enabled and self._adapter_part(model or "") in self.paths)

    def resolve(self, model: str | None, adapter: str | None = None) -> str | None:
        """Return the adapter that a request names as its ``model`` or as ``adapter``; ``None``: the model alone.

        A name that is neither the model's nor an adapter's is taken for the served model. Raises ``ApiError`` if an
        adapter is not loaded, or if two are named.
        """
        from_model = self._from_model(model)
        if not adapter:
            return from_model
        if from_model not in (None, adapter):
            raise ApiError(
                f"model names the adapter {from_model!r}, and lora_path {adapter[:SHOWN]!r}; name one of them",
                param="lora_path",
            )
        if not self.enabled:
            raise ApiError(f"lora_path: {DISABLED}", param="lora_path")
        return self._require_loaded(adapter, "lora_path")

    def _require_loaded(self, adapter: str, field: str) -> str:
        """Return the adapter that ``field`` names. Raises ``ApiError`` if it is not loaded."""
        if adapter not in self.paths:
            raise ApiError(f"no adapter {adapter[:SHOWN]!r} is loaded; loaded: {self._known()}", param=field)
        return adapter

    async def load(self, name: str, path: str) -> None:
        """Let requests use the adapter in the folder ``path`` as ``name``.

        Raises ``ApiError`` if the name is the model's, since no request could choose that adapter, and ``ApiError`` or
        ``RequestError`` if it cannot be loaded.
        """
        if not self.enabled:
            raise ApiError(DISABLED)
        if name == self._model:
            raise ApiError(f"{name!r} is the name of the served model; give the adapter another", param="lora_name")
        await shielded(self._load(name, path))

    async def _load(self, name: str, path: str) -> None:
        await self._client.control("load_adapter", adapter=name, path=path)
        self.paths[name] = path

    async def unload(self, name: str) -> None:
        """Unload an adapter; requests in flight keep it until they end. Raises ``ApiError`` if it is not loaded."""
        if not self.enabled:
            raise ApiError(DISABLED)
        self._require_loaded(name, "lora_name")
        await shielded(self._unload(name))

    async def _unload(self, name: str) -> None:
        await self._client.control("unload_adapter", adapter=name)
        self.paths.pop(name, None)

    def _from_model(self, model: str | None) -> str | None:
        if not self.enabled or model in (None, self._model):
            return None
        requested = model or ""
        if (name := self._adapter_part(requested)) in self.paths:
            return name
        if requested.startswith(f"{self._model}:"):
            raise ApiError(
                f"The model {requested[:SHOWN]!r} does not exist: no such adapter is loaded; loaded: {self._known()}",
                404,
                param="model",
                code="model_not_found",
            )
        return None

    def _adapter_part(self, model: str) -> str:
        """Return the adapter's part of a model name: all of it, or the part after the last colon."""
        return model if model in self.paths else model.rpartition(":")[2]

    def _known(self) -> str:
        return ", ".join(map(repr, self.paths)) or "none"


def unknown_model(name: str, *served: str) -> ApiError:
    """Return the refusal of a request for a model that is not served."""
    return ApiError(
        f"The model {name[:SHOWN]!r} does not exist; this server serves {', '.join(map(repr, served))}",
        404,
        param="model",
        code="model_not_found",
    )
