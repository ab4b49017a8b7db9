"""Conformance test of executors without a model: collectives, messages, failures and the end of workers."""
