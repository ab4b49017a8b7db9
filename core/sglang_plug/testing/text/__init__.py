"""Conformance tests of components that handle text: tokenizers, grammars, output parsers, images."""
