"""Which record is in which row of which step: a pure function of the order spec."""
