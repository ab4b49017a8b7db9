"""The offline engine: generation in this process, without a server."""
