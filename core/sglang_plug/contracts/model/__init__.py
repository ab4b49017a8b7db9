"""The contracts of models and of everything that a forward pass consists of."""
