"""The contract of stores: files, batches and responses that API processes share."""
