"""Assembling an engine: building its components, sizing the KV pool, profiling memory."""
