"""What it costs, as ratios of two things measured in one run."""
