"""Tensor parallelism: the group of ranks, and what a worker rank does."""
