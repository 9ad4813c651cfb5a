"""How training scales with workers: measured as far as this machine goes, and by a model of the step beyond."""
