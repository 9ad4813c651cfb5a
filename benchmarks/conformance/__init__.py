"""Who keeps what they promise: one program of tests against this input and its peers; see `__main__`."""
