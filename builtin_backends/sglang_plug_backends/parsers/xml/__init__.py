"""Calls whose arguments are written one by one between tags, as plain text."""
