"""What a person reads at the end."""
