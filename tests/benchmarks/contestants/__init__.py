"""Who is measured: a module each, with a function for each measure that takes a count."""
