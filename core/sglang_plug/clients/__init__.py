"""Clients of engines: how the API process starts an engine elsewhere, talks to it, and combines several."""
