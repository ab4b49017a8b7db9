"""The contracts of components that decide what is computed and where, and of observers."""
