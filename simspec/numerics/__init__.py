"""Random draws, statistics over prompts, closed forms, and compilation."""
