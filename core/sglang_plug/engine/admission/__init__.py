"""Checks of requests before they are queued, and while they wait there."""
