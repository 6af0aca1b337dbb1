"""Training of targets, drafters and acceptance predictors."""
