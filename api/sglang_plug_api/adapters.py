"""Adapters as requests name them: by themselves, or behind the model's name and a colon."""

from __future__ import annotations

from collections.abc import Mapping

from .errors import SHOWN, ApiError

DISABLED = "adapters are not enabled: start the server with --enable-lora or --lora-paths"


class AdapterNames:
    """What is known here of the engine's adapters.

    Args:
        model: what the served model is called.
        loaded: name -> folder of those that are loaded; ``None``: adapters are not enabled.
    """

    def __init__(self, model: str, loaded: Mapping[str, str] | None) -> None:
        self._model, self.enabled = model, loaded is not None
        self.paths: dict[str, str] = dict(loaded or {})

    def knows(self, model: str | None) -> bool:
        """True if ``model`` is the served one, or an adapter on it."""
        return model in (None, self._model) or (self.enabled and self._behind(model or "") in self.paths)

    def chosen(self, model: str | None, adapter: str | None = None) -> str | None:
        """The adapter that a request names as its ``model``, or as such; ``None``: the model alone.

        A name that is neither the model's nor an adapter's is that of some model elsewhere and means the one served
        here. Raises ``ApiError`` if an adapter is not loaded, or if two are named.
        """
        found = self._of_model(model)
        if not adapter:
            return found
        if found not in (None, adapter):
            raise ApiError(f"model names the adapter {found!r}, and lora_path {adapter[:SHOWN]!r}", param="lora_path")
        return self.named(adapter)

    def named(self, adapter: str) -> str:
        """``adapter``. Raises ``ApiError`` if it is not loaded."""
        if not self.enabled:
            raise ApiError(f"lora_path: {DISABLED}", param="lora_path")
        if adapter not in self.paths:
            raise ApiError(f"no adapter {adapter[:SHOWN]!r} is loaded; loaded: {self._known()}", param="lora_path")
        return adapter

    def check_free(self, name: str) -> None:
        """Refuse the name of the model for an adapter, which nobody could ask for. Raises ``ApiError``."""
        if not self.enabled:
            raise ApiError(DISABLED)
        if name == self._model:
            raise ApiError(f"{name!r} is the name of the served model; give the adapter another", param="lora_name")

    def _of_model(self, model: str | None) -> str | None:
        if not self.enabled or model in (None, self._model):
            return None
        asked = model or ""
        if (name := self._behind(asked)) in self.paths:
            return name
        if asked.startswith(f"{self._model}:"):
            raise ApiError(
                f"The model {asked[:SHOWN]!r} does not exist: no such adapter is loaded; loaded: {self._known()}",
                404,
                param="model",
                code="model_not_found",
            )
        return None

    def _behind(self, model: str) -> str:
        """The adapter's part of a model's name: all of it, or what stands behind the last colon."""
        return model if model in self.paths else model.rpartition(":")[2]

    def _known(self) -> str:
        return ", ".join(map(repr, self.paths)) or "none"
