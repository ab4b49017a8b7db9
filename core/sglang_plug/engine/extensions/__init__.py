"""Step extensions, resolved at start into one list of methods for each extension point."""
