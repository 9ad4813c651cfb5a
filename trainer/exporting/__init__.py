"""Exports a trained model to files that need none of our code: raw images or records in, probabilities out."""
