"""Images in prompts, as the engine handles them."""
