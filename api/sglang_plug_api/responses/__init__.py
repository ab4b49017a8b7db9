"""``/v1/responses``: conversations that the server remembers, in memory and in this process only."""
