"""`beam_jobs.validate`: checks every record against the manifest."""
