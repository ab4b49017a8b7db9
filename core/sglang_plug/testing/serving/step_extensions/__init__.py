"""Conformance test of step extensions, and its parts."""
