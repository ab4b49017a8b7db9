"""Backend for an engine in this process: any object with the methods of ``sglang_plug_api.Engine``."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol, runtime_checkable

from sglang_plug_lang.errors import BackendError
from sglang_plug_lang.templates import template_for, template_named

from .native import NativeGeneration


@runtime_checkable
class EngineLike(Protocol):
    """The methods of an engine that the backend calls."""

    def generate(self, prompt: Any = None, sampling_params: Any = None, **fields: Any) -> Any:
        """Generate as ``POST /generate`` does; with ``stream`` return an iterator of growing responses."""

    def flush_cache(self) -> Any:
        """Empty the prefix cache."""

    def get_server_info(self) -> Any:
        """Return limits, load and components."""


class _EngineTransport:
    """Calls ``generate`` of an engine."""

    def __init__(self, engine: EngineLike) -> None:
        self._engine = engine

    def generate(self, body: dict[str, Any]) -> Any:
        """Return the response."""
        try:
            return self._engine.generate(body.get("text"), **_fields(body))
        except Exception as error:
            raise _refusal(error) from error

    def events(self, body: dict[str, Any]) -> Generator[dict[str, Any], None, None]:
        """Yield the response as it grows."""
        try:
            yield from self._engine.generate(body.get("text"), stream=True, **_fields(body))
        except Exception as error:
            raise _refusal(error) from error


class EngineBackend(NativeGeneration):
    """Runs programs on an engine in this process, which its owner shuts down.

    Args:
        engine: an engine such as ``sglang_plug_api.Engine()``.
        chat_template_name: a template instead of the one chosen by the model's name.
    """

    def __init__(self, engine: EngineLike, chat_template_name: str | None = None) -> None:
        self._engine = engine
        path = str(dict(engine.get_server_info()).get("model_path", ""))
        template = template_for(path) if chat_template_name is None else template_named(chat_template_name)
        super().__init__(_EngineTransport(engine), template)

    def flush_cache(self) -> bool:
        """Empty the prefix cache; return False if requests are running."""
        return bool(self._engine.flush_cache())

    def get_server_info(self) -> dict[str, Any]:
        """Return limits, load and components."""
        return dict(self._engine.get_server_info())


def _fields(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != "text"}


def _refusal(error: Exception) -> BackendError:
    status = getattr(error, "status", None)
    return BackendError(str(error) or type(error).__name__, status if isinstance(status, int) else None)
