"""Rows of a source made into examples: which are valid, their images as they are stored, their records."""
