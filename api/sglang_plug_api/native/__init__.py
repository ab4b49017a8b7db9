"""The native API and the offline engine."""
