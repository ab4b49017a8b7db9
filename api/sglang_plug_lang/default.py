"""Default backend of programs that are started without one."""

from __future__ import annotations

from typing import Any

from .backends.base import Backend
from .backends.engine import EngineBackend, EngineLike


class GlobalConfig:
    """Configuration of this process: the default backend."""

    def __init__(self) -> None:
        self._backend: Backend | None = None

    @property
    def default_backend(self) -> Backend | None:
        """The backend of programs that are started without one."""
        return self._backend

    @default_backend.setter
    def default_backend(self, backend: Any) -> None:
        self._backend = None if backend is None else as_backend(backend)


global_config = GlobalConfig()


def set_default_backend(backend: Any) -> None:
    """Set the default: a backend, an engine such as ``sglang_plug_api.Engine()``, or ``None``."""
    global_config.default_backend = backend


def backend_or_default(backend: Any = None) -> Backend:
    """Return ``backend``, or the default. Raises ``RuntimeError`` if there is neither."""
    if backend is not None:
        return as_backend(backend)
    if global_config.default_backend is None:
        raise RuntimeError("no backend: give backend=..., or call set_default_backend(RuntimeEndpoint(...)) first")
    return global_config.default_backend


def as_backend(value: Any) -> Backend:
    """Return a backend as it is, or a backend for an engine. Raises ``TypeError`` for anything else."""
    if isinstance(value, Backend):
        return value
    if isinstance(value, EngineLike):
        return EngineBackend(value)
    raise TypeError(f"{type(value).__name__} is neither a backend nor an engine: it lacks generate, stream or select")


def flush_cache(backend: Any = None) -> bool:
    """Empty the backend's prefix cache; return False if requests are running."""
    return backend_or_default(backend).flush_cache()


def get_server_info(backend: Any = None) -> dict[str, Any]:
    """Return the backend's description of itself."""
    return backend_or_default(backend).get_server_info()
