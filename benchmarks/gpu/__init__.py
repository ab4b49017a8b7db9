"""Checks and measurements of a CUDA machine: ``python -m benchmarks.gpu``."""
