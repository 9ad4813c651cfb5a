"""The recipes that distort a batch of images."""
