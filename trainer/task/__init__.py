"""What is trained, apart from how it is distributed: the base class to override, and models that are compiled."""
