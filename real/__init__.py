"""real: recording, training and running drafters and targets, with torch."""
