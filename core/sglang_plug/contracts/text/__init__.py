"""The contracts of components that turn text, images and grammars into tokens and back. Torch-free."""
