"""The built-in backends: each folder is one plugin."""
