"""JSON schemas, read and rewritten as grammars."""
