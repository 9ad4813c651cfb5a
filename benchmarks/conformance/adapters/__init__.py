"""One module per peer, set up according to the peer's own documentation; see `..adapter`."""
