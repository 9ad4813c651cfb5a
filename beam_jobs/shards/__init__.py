"""Shards: which rows, their images and records, the files and what is said of them."""
