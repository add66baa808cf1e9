"""Recorded runs of real engines, request by request and step by step, and their simulation."""
