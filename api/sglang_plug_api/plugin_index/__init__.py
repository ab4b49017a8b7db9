"""The index of known plugin distributions, for ``sglang-plug plugins search``."""
