"""Assembling an engine: resolving choices, loading weights, building components."""
