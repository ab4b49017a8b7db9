"""The settings of ``--deployment ray``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings given as ``--set ray.KEY=VALUE``."""

    engine_cpus: float = 1.0
    """CPUs that Ray reserves for each engine, which computes with as many threads unless OMP_NUM_THREADS is set."""
    engine_gpus: float | None = None
    """GPUs that Ray reserves for each engine; by default one per rank if there are any, unless --device is cpu."""
    cluster_cpus: int | None = None
    """CPUs of a local cluster; by default those of this machine, but at least those that the engines need."""
    object_store_mib: int = 100
    """Size of a local cluster's object store in MiB; tokens do not pass through it."""

    def __post_init__(self) -> None:
        if self.engine_cpus <= 0:
            raise ValueError(f"engine_cpus is {self.engine_cpus}, but must be greater than 0")
        if self.engine_gpus is not None and self.engine_gpus < 0:
            raise ValueError(f"engine_gpus is {self.engine_gpus}, but must be at least 0")
        if self.cluster_cpus is not None and self.cluster_cpus < 1:
            raise ValueError(f"cluster_cpus is {self.cluster_cpus}, but must be at least 1")
        if self.object_store_mib < 80:
            raise ValueError(f"object_store_mib is {self.object_store_mib}, but must be at least 80")
