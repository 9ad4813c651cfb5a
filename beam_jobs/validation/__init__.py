"""The command `validate`: its steps, its Beam job, the check of a shard."""
