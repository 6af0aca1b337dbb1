"""Benchmarks: predicted against measured throughput, and other implementations."""
