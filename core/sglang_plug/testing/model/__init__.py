"""Conformance tests of components that compute: models, attention backends, kernels, quantizations."""
