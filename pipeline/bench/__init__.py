"""`python -m pipeline.bench`: what each stage of an input costs, and which of them is the bottleneck."""
