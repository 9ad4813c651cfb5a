"""`python -m pipeline.index`: makes TFRecord files that exist a data set."""
