"""Benchmarks that print ratios: both sides are measured in one run."""
