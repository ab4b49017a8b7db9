"""The scheduler: the queue, the running sequences, and planning the chunks of a step."""
