"""Writes and checks the shards of a plan, and lists them in the manifest."""
