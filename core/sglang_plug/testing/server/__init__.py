"""Conformance tests of components of the API process: routes, commands, observers."""
