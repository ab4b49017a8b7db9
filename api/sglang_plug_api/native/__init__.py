"""The native API: the requests of ``/generate``."""
