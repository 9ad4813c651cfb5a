"""`python -m pipeline.inspect`: shows what is in a data set, as tables and as a picture."""
