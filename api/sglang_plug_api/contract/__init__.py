"""The public contract as data: its versions, the differences between two of them, and what a plugin uses of it."""
