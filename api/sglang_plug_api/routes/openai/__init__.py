"""Routes of the OpenAI APIs."""
