"""Training with the weights on parameter servers: a chief schedules steps, and workers run them."""
