"""The scheduler: the queue, the running sequences, and the chunks of a step."""
