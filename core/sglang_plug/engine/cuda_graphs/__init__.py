"""CUDA graphs: captured decode steps, and prefill steps that are replayed in pieces."""
