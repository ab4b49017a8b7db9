"""The arguments of the Ray Serve application."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from sglang_plug import PluginOptions, Plugins
from sglang_plug_api.plugin import ServerConfig, named_options


def _from_text(value: Any) -> Any:
    """Return the value of JSON text, as ``serve run`` passes it on; anything else as it is."""
    return json.loads(value) if isinstance(value, str) else value


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class PluginArguments(_Strict):
    """The plugins to load, which must be installed, or lie, on every machine."""

    allow: tuple[str, ...] = ()
    block: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    dirs: tuple[str, ...] = ()
    settings: dict[str, dict[str, Any]] = Field(default_factory=dict)


class Autoscaling(_Strict):
    """The number of engines follows the tokens that are queued and running."""

    min_engines: int = Field(1, ge=1)
    max_engines: int = Field(ge=1)
    tokens_per_engine: float = Field(4096, gt=0)
    """Prompt tokens of waiting requests and KV slots of running ones, for each engine."""
    upscale_delay_s: float = Field(30.0, ge=0)
    downscale_delay_s: float = Field(600.0, ge=0)


class Arguments(_Strict):
    """The arguments of the application. Each process reads ``options`` as ``sglang-plug serve`` does."""

    model_path: str = "auto"
    """A folder that every machine has, or a hub id; ``auto``: the embedded demo model."""
    options: Annotated[dict[str, Any], BeforeValidator(_from_text)] = Field(default_factory=dict)
    """Options of ``sglang-plug serve`` by name, with underscores: ``{"max_total_tokens": 65536}``."""
    plugins: Annotated[PluginArguments, BeforeValidator(_from_text)] = Field(default_factory=PluginArguments)
    engines: int = Field(1, ge=1)
    """Number of engines, unless ``autoscaling`` is given."""
    autoscaling: Annotated[Autoscaling | None, BeforeValidator(_from_text)] = None
    ingresses: int = Field(1, ge=1)
    """Number of API processes."""
    engine_cpus: float = Field(1.0, gt=0)
    engine_gpus: float = Field(0.0, ge=0)
    """GPUs of each engine: as many as ``tp_size``."""
    ingress_cpus: float = Field(1.0, ge=0)
    drain_seconds: float = Field(120.0, gt=0)
    """Seconds that a replica which shall stop has for its requests."""

    def load(self) -> tuple[ServerConfig, Plugins]:
        """Return the configuration and the plugins of this process. Raises ``ConfigError``."""
        plugins = Plugins.discover(PluginOptions(**self.plugins.model_dump()))
        options = {"model_path": self.model_path, **self.options}
        return named_options(options, plugins, "the Ray application"), plugins

    @property
    def version(self) -> str:
        """Digest of what an engine and an ingress must have in common to work together."""
        common = self.model_dump(mode="json", include={"model_path", "options", "plugins"})
        return hashlib.sha256(json.dumps(common, sort_keys=True).encode()).hexdigest()
