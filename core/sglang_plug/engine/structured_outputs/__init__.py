"""Structured outputs: grammars are compiled in another process, and mask the logits of a step."""
