"""Reads shards into windows of records in memory, checking every byte."""
