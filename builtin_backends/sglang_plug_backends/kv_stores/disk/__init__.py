"""Blocks in a directory: append-only segment files with checksums, and an index that is rebuilt from them."""
