"""Routes that operate the server: health, information, weights and adapters."""
