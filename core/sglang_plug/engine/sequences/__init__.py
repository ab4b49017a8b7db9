"""Sequences, their chunks in a step, and the step on the device."""
