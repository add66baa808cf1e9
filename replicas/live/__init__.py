"""Replicas that are real engines: vLLM in this process, stepped in virtual time (DESIGN section 5).

Nothing here imports vLLM or torch before an engine is started, and only `engine` does so then.
"""
