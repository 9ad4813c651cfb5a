"""Running a Beam pipeline from a command: runners, worker processes, signals, progress."""
