"""Where a conversion writes to: local folders, object stores, and how a data set appears there all at once."""
