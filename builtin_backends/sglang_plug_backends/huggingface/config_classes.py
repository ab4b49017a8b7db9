"""Transformers' configuration classes, without the layers that come with them.

Configurations check themselves with ``transformers.utils.type_validators``, which imports activations to know their
names, and with them torch's compiler and its distributed tensors: more than all else that an engine imports. Without
activations it does not check their names, which only configurations of speech models need.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec, module_from_spec
from types import SimpleNamespace
from typing import Any

CHECKS = "transformers.utils.type_validators"
ACTIVATIONS = "activations"
NONE = SimpleNamespace(ACT2FN={})


def config_class(model_type: object) -> tuple[Any, bool]:
    """Return the configuration class of a family and ``True``, or the base class and ``False`` if it is unknown."""
    import_checks()
    from transformers import CONFIG_MAPPING, PreTrainedConfig

    if isinstance(model_type, str) and model_type in CONFIG_MAPPING:
        return CONFIG_MAPPING[model_type], True
    return PreTrainedConfig, False


def import_checks(checks: str = CHECKS) -> None:
    """Import the configuration checks as if activations were unavailable, unless they are already imported."""
    if checks in sys.modules:
        return
    try:
        spec = find_spec(checks)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.loader is None:  # another release of transformers: import it unchanged
        return
    module = module_from_spec(spec)
    vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import}
    spec.loader.exec_module(module)  # before it is registered: no thread ever sees a partial module
    parent, _, name = checks.rpartition(".")
    setattr(sys.modules[parent], name, sys.modules.setdefault(checks, module))


def _import(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> Any:
    if name == ACTIVATIONS and level:
        return NONE
    return builtins.__import__(name, globals, locals, fromlist, level)
