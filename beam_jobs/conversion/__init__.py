"""The commands `convert` and `edit`: their steps, their Beam job, their dry run."""
