"""Conformance tests of components of the engine: caches, policies, drafters, extensions."""
