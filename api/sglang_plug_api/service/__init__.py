"""The callers that requests are served for, and their deadlines."""
