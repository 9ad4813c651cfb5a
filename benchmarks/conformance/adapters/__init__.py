"""One module per peer, which shows how the peer's own documentation says to do it; see `..adapter`."""
