"""The contestants of `benchmarks.input_throughput`, one module each, and the code that runs one in its own process."""
