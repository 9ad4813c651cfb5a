"""The contestants of `benchmarks.input_throughput`, one module each, and what runs one in its own process."""
