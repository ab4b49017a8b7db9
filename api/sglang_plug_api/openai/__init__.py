"""The OpenAI APIs: chat requests, tools and streamed choices."""
