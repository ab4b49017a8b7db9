"""The processes of an engine: the client in the API process, the messages, and the engine process."""
