"""Processes, memory and files of the operating system, as every part of the project uses them."""
