"""Engines that serve models: how they draft and count, what they write and what they read."""
