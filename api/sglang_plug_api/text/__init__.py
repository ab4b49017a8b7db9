"""Text in, text out: requests become jobs of the engine, and its tokens become text."""
