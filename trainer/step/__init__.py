"""One update of the weights: the state that it changes, the optimizer, the compiled loop."""
