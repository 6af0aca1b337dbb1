"""Serving engines and tools: settings written from replays, measurements read, one file each."""
