"""Checks and measurements of single kernels and layers on a device."""
