"""Transformers' configuration classes, without the layers that come with them.

Configurations check themselves with ``transformers.utils.type_validators``, which knows the names of activations by
importing these, and with them torch's compiler and its distributed tensors: more than all else that an engine imports.
Where it finds no activations it does not check their names, which only configurations of speech models ask for.
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
    """The configuration class of a family and ``True``; the base class and ``False`` if transformers knows no such."""
    import_checks()
    from transformers import CONFIG_MAPPING, PreTrainedConfig

    if isinstance(model_type, str) and model_type in CONFIG_MAPPING:
        return CONFIG_MAPPING[model_type], True
    return PreTrainedConfig, False


def import_checks() -> None:
    """Import the checks of configurations as if there were no activations, unless they have been imported."""
    if CHECKS in sys.modules:
        return
    try:
        spec = find_spec(CHECKS)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.loader is None:  # another release of transformers, which imports what it will
        return
    module = module_from_spec(spec)
    vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import}
    spec.loader.exec_module(module)  # before it is known by its name: no thread ever meets a part of it
    parent, _, name = CHECKS.rpartition(".")
    setattr(sys.modules[parent], name, sys.modules.setdefault(CHECKS, module))


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
