"""Shards of a plan: written, checked, and listed in the manifest."""
