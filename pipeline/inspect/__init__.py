"""`python -m pipeline.inspect`: what is in a data set, as tables and as a picture."""
