"""Served results that others published, by their means and percentiles, and their simulation."""
