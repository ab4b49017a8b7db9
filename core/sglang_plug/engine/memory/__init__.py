"""KV memory: slots and their owners, the size of the pool, and the memory budget."""
