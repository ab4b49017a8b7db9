"""KV memory: slots and their owners, the prefix pool, and the memory budget."""
