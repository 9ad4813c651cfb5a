"""A job on this machine: processes on loopback, watched, started again, and ended with the launcher."""
