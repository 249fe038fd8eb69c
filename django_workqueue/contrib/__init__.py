"""Optional parts, each with an extra of its own: nothing of the package imports them."""
