"""What a model gets right and wrong on a split: as numbers, a table and pictures."""
