"""System checks: what a configuration gets wrong, with what to type."""
