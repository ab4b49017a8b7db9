"""The clients of a server's engines, as its options describe them."""
