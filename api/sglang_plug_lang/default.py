"""The backend of programs that are not told where to run."""

from __future__ import annotations

from typing import Any

from .backends.base import Backend
from .backends.engine import EngineBackend, EngineLike


class _Default:
    """Holds the one backend of this process."""

    backend: Backend | None = None


_default = _Default()


def set_default_backend(backend: Any) -> None:
    """Run programs there from now on: a backend, an engine such as ``sglang_plug_api.Engine()``, or ``None``."""
    _default.backend = None if backend is None else as_backend(backend)


def backend_or_default(backend: Any = None) -> Backend:
    """``backend``, or the default. Raises ``RuntimeError`` if there is neither."""
    if backend is not None:
        return as_backend(backend)
    if _default.backend is None:
        raise RuntimeError("no backend: give backend=..., or call set_default_backend(RuntimeEndpoint(...)) first")
    return _default.backend


def as_backend(given: Any) -> Backend:
    """A backend as it is, an engine wrapped. Raises ``TypeError`` for anything else."""
    if isinstance(given, Backend):
        return given
    if isinstance(given, EngineLike):
        return EngineBackend(given)
    raise TypeError(f"{type(given).__name__} is neither a backend nor an engine: it lacks generate, stream or select")


def flush_cache(backend: Any = None) -> bool:
    """Empty the backend's prefix cache; False if requests are running."""
    return backend_or_default(backend).flush_cache()


def get_server_info(backend: Any = None) -> dict[str, Any]:
    """What the backend says about itself."""
    return backend_or_default(backend).get_server_info()
