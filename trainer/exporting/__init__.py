"""Exports a trained model to files without our code: raw images or records in, probabilities and names out."""
