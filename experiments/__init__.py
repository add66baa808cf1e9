"""Configs, wiring, runs, results and reports: the one place where concrete classes meet."""
