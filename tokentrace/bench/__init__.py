"""Bench: many requests, percentiles, and fair comparisons."""
