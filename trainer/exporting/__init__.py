"""A trained model in files that need none of our code: raw images in, probabilities and class names out."""
