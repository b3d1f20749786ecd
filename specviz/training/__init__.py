"""Training of the drafters on texts that the target wrote."""
