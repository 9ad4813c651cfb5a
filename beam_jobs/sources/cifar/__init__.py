"""CIFAR-10 and CIFAR-100, binary and Python versions."""
