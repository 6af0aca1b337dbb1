"""Files, names and tables as they are shown to people."""
