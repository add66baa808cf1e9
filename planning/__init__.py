"""Closed forms of a deployment: what one replica does, how many a demand takes, what that costs. Pure; seconds, bytes, tokens.

They stand on the same step time, memory and catalogue as the simulated engine (`replicas`), so that where a plan and its
simulation differ, it is queueing, mixing and spread that differ, never the arithmetic. Queues are in `sim.queueing`.
"""
