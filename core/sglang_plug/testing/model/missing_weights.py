"""Conformance test of models: a checkpoint that lacks weights is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from sglang_plug.contracts.model.model import Model, WeightError

Weights = Sequence[tuple[str, Tensor]]


def check_missing_weight(make: Callable[[], Model], weights: Weights) -> None:
    """Load a checkpoint that lacks a matrix of the last layer.

    Args:
        make: creates a model without weights.
        weights: names of a checkpoint and tensors, more than once if they are tied.

    Raises:
        AssertionError: the checkpoint is accepted, or refused otherwise than with ``WeightError``.
    """
    model = make()
    name = _last_matrix(weights, model.ignored)
    if name is None:
        return
    where = f"{type(model).__name__} fails 'a checkpoint without {name}'"
    try:
        model.load_weights([(other, tensor) for other, tensor in weights if other != name])
    except WeightError:
        return
    except Exception as error:
        raise AssertionError(f"{where}: raised {type(error).__name__} instead of WeightError: {error}") from error
    raise AssertionError(f"{where}: it is accepted; load_weights() must raise WeightError")


def _last_matrix(weights: Weights, ignored: Sequence[str]) -> str | None:
    """Return the name of the last matrix in a layer that is not tied and that the model reads; the text comes last."""
    addresses = [tensor.data_ptr() for _, tensor in weights]
    for name, tensor in reversed(weights):
        in_layer = any(part.isdigit() for part in name.split("."))
        if in_layer and tensor.ndim > 1 and addresses.count(tensor.data_ptr()) == 1:
            if not any(part in name for part in ignored):
                return name
    return None
