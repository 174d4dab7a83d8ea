"""transform."""
