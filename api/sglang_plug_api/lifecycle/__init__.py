"""The life of a server: checks, start, warm-up and shutdown."""
