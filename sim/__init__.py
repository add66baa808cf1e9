"""Clock, fleet, records, metrics and invariants of a simulation; knows no concrete policy."""
