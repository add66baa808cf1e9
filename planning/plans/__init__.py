"""`kind: plan`: from traffic, model, GPUs, prices and targets to a fleet, a day and a bill, checked by simulation."""
