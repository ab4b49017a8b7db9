"""What grammar backends and parsers share: schemas, expressions and grammars, read and written. No plugin."""
