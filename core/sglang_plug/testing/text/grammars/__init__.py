"""Conformance tests of grammar backends."""
