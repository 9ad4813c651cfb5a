"""The processes and devices of a job: who takes part, what they agree on, and how signals and lost workers end it."""
