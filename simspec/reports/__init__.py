"""Reports over recordings: oracle gap, drafters, trees, speedup curves."""
