"""The installed plugins: discovery, lock files, and the check that all processes see the same ones."""
