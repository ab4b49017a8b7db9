"""Loading of prefixes and tensors from the tiers, as far as that is faster than computing them."""
