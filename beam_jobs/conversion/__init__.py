"""The command `convert`: its steps, its Beam job, its dry run."""
