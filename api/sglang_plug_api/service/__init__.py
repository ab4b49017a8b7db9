"""Callers, deadlines, limits and the admission gate, which every route serves requests with."""
