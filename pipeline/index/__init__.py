"""`python -m pipeline.index`: makes existing TFRecord files a data set."""
