"""A trained model in files that need none of our code: raw images, or records, in, probabilities and names out."""
