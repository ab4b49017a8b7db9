"""Storing and fetching blocks: tiers, their transfers and their measured rates."""
