"""Traffic: who arrives when, with how many prompt and output tokens."""
