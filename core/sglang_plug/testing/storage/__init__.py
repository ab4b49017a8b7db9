"""Conformance test of stores of files, batches and responses."""
