"""Folders of images, one a class."""
