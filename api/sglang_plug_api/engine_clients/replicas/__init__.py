"""Several engines behind one client: restarts, routing, control calls that reach all of them."""
