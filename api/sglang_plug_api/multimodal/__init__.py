"""Images in requests: sources, fetching, limits, and prompts made of them."""
