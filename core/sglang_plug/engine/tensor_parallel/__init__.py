"""Tensor parallelism: the group of ranks, and the messages between them."""
