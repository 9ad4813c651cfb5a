"""The page of a run: the content of its files, as a page, as JSON and for Prometheus. Read-only. Without TensorFlow."""
