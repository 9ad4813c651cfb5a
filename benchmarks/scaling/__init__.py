"""How training scales with the number of workers: measured on this machine, and modelled beyond that."""
