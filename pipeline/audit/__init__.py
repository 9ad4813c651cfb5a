"""`python -m pipeline.audit`: proves that every record is seen once, and checks what a run saw."""
