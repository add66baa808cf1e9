"""Autoscalers: how many replicas a pool should have."""
