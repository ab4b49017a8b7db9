"""Resolving the configuration, and loading the checkpoint."""
