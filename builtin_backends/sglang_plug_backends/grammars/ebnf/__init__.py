"""EBNF grammars, regular expressions and automata."""
