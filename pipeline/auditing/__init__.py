"""What `pipeline.audit` is made of: the proof, what is read, what a run saw, the picture."""
