"""Calibrates on a device and validates against runs recorded there, in one go with its own time limit (`python -m`)."""
