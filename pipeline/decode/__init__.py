"""From the records of a window to the examples of a batch."""
