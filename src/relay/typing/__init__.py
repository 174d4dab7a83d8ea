"""typing."""
