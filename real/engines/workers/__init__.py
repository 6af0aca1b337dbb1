"""Worker scripts: each runs in the environment of its engine and imports that engine alone."""
