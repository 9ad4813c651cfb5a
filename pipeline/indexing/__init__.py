"""A manifest for TFRecord files that are there already."""
