"""Draft-length policies: their functions, arguments, predictors and states."""
