"""The device that a model is served on, and the dtype of its weights and activations."""

from __future__ import annotations

from typing import Any

import torch

from sglang_plug.config import AUTO, ConfigError
from sglang_plug.contracts.model.quantization import stored_quantization

DTYPES = {
    "float32": torch.float32,
    "float": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "half": torch.float16,
}


def choose_device(name: str, offset: int = 0, *, cuda_devices: int | None = None) -> torch.device:
    """Return the device called ``name``, or the one ``offset`` devices after it, if it is an accelerator.

    ``cuda_devices``: number of CUDA devices that can be used; ``None``: those that torch sees. Raises ``ConfigError``.
    """
    count = cuda_devices if cuda_devices is not None else torch.cuda.device_count() if torch.cuda.is_available() else 0
    try:
        device = torch.device(name if name != AUTO else "cuda" if count else "cpu")
    except RuntimeError as error:
        raise ConfigError(f"--device {name!r} is not a device that torch knows") from error
    if device.type != "cpu" and offset:
        device = torch.device(device.type, (device.index or 0) + offset)
    if device.type == "cuda" and not count:
        raise ConfigError(f"--device {name}: torch sees no CUDA device here; use --device cpu")
    if device.type == "cuda" and (device.index or 0) >= count:
        needed = f"--device {name}" + (f" with this many --replicas needs {device}" if offset else "")
        raise ConfigError(f"{needed}: torch sees {count} CUDA devices here; the last is cuda:{count - 1}")
    if device.type not in ("cpu", "cuda"):
        try:
            torch.zeros(1, device=device).tolist()
        except (RuntimeError, AssertionError) as error:  # NotImplementedError is a RuntimeError
            raise ConfigError(f"--device {name}: torch cannot compute there: {str(error).splitlines()[0]}") from error
    return device


def describe_device(device: torch.device) -> dict[str, Any]:
    """Return the facts of the hardware by which plugins choose components."""
    if device.type != "cuda":
        return {"cpu_capability": torch.backends.cpu.get_cpu_capability()}
    return {"capability": torch.cuda.get_device_capability(device), "name": torch.cuda.get_device_name(device)}


def choose_dtype(name: str, config: Any, text: Any, device: torch.device) -> torch.dtype:
    """Return the dtype that ``--dtype`` names, or else the checkpoint's, stated for the model or its decoder.

    Raises ``ConfigError`` for an unknown name.
    """
    if name != AUTO:
        if name not in DTYPES:
            raise ConfigError(f"--dtype {name!r} is unknown; known: auto, {', '.join(DTYPES)}")
        return DTYPES[name]
    stated = (getattr(section, name, None) for section in (config, text) for name in ("dtype", "torch_dtype"))
    stored = next(filter(None, stated), torch.float32)
    dtype = DTYPES.get(stored.removeprefix("torch."), torch.float32) if isinstance(stored, str) else stored
    if dtype == torch.float16 and device.type == "cpu":  # arithmetic in float16 is emulated on most CPUs
        # quantized weights are rounded far more anyway
        return torch.float32 if stored_quantization(config) is None else torch.bfloat16
    return dtype if isinstance(dtype, torch.dtype) else torch.float32
