"""Files and batches: what is stored, how jobs run, and how both survive the process."""
