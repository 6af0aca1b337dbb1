"""Draft trees: shapes, and the search for the best."""
