"""Shared code of grammar backends and parsers: reading and writing schemas, expressions and grammars. No plugin."""
