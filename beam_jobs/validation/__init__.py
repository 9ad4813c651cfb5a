"""`beam_jobs.validate`: every record against the manifest."""
