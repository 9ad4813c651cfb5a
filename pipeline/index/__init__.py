"""`python -m pipeline.index`: turns existing TFRecord files into a data set."""
