"""One self-contained HTML page of a decision: which drafter, which draft length, and why."""
