"""Commands that talk with a model from a terminal: ``sglang-plug chat`` and ``sglang-plug complete``."""
