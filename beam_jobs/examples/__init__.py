"""Turns rows of a source into examples: selects the valid ones, recodes their images, makes their records."""
