"""Settings for serving engines, written from replays and read again by each engine's own rules."""
