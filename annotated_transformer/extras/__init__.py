"""Extras: each folder serves a particular user, and can be deleted without harm to the core."""
