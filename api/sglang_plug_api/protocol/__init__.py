"""Request bodies, as pydantic models."""
