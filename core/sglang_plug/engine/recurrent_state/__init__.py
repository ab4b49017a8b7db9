"""The recurrent states of sequences: their rows in the pool, and the copies for the prefix cache."""
