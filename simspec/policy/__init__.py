"""What a draft-length policy is: its functions, arguments, predictors and states."""
