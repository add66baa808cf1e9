"""Replicas that are real engines: vLLM in this process, stepped in virtual time (docs/design.md, Live engines).

Nothing here imports vLLM or torch before an engine is started, and only `engine` does so then.
"""
