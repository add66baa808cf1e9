"""The same load and engine, simulated."""
