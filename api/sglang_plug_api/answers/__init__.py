"""Bodies of answers, made and encoded in parts, and errors."""
