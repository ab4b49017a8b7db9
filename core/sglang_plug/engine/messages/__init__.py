"""Messages of the engine: to and from the API process, and from rank 0 to the other ranks."""
