"""Answers that are made and encoded in parts."""
