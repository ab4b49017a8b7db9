"""LoRA adapters: loading them, and applying them to the rows of a step."""
