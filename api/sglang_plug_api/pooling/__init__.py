"""Pooling tasks: embeddings, scores and classification."""
