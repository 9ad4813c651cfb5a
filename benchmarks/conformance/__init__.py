"""Which input libraries keep their promises: one test program for this input and its peers; see `__main__`."""
