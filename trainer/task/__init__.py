"""What is trained, apart from how it is distributed: the base class to override, and the built-in tasks."""
