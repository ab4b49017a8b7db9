"""The HTTP server, the command line and the offline engine: text on this side, tokens on the engine's."""
