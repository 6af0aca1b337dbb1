"""Recording acceptance traces: what a drafter proposes from every position."""
