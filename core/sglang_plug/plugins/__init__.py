"""The plugin system: discovery, declaration, settings and the registry of components."""
