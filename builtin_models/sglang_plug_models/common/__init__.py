"""Building blocks that model families share. Not a plugin."""
