"""Folders of images, one per class."""
