"""Replays: policies on recordings, sweeps and their figures."""
