"""Blocks that engines send to each other over TCP, encrypted and authenticated with a secret."""
