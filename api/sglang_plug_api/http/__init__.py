"""HTTP: the application, connections, authentication, request bodies and errors."""
