"""The page of a run: what its files say, as a page, as JSON and for Prometheus. It only reads. Without TensorFlow."""
