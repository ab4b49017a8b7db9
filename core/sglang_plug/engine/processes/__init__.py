"""The engine process: its main program, and serving until the end."""
