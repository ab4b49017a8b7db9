"""Conformance tests of deployments and routing policies."""
