"""Where the time of a run goes: waiting for input, computing, communicating."""
