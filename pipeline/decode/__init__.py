"""From records to images and features."""
