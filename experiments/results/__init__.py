"""What a run leaves: a row for every request, interval and machine, counted and summed up."""
