"""``sglang-plug bench``: measurements of a running server."""
