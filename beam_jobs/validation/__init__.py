"""The command `validate`: its steps, its Beam job, and the check of a shard."""
