"""Files and batches: storage, execution, and recovery after a restart."""
