"""The labels of metrics that one engine reports."""

from __future__ import annotations


def engine_labels(model: str, replica: int | None) -> dict[str, str]:
    """Return the labels of a model's engine, with its number if it is one of several replicas."""
    return {"model_name": model} if replica is None else {"model_name": model, "dp_rank": str(replica)}
