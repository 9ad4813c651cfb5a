"""Evaluation of a model on a split: numbers, a table and pictures."""
