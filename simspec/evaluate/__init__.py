"""Evaluation: prompts by policies on recordings, with estimates over prompts and prices."""
