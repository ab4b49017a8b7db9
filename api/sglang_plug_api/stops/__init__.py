"""Stop conditions on the text of an output: stop strings and regular expressions."""
