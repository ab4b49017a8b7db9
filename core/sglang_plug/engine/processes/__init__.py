"""The engine process: its messages, its main program and its watchdog."""
