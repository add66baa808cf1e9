"""The door to the fleet: who may send how much, and who is turned away before it costs anybody a token."""
