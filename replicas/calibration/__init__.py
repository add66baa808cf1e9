"""Step times measured on a live engine: the file of them, how recorded steps are read, how they are fitted."""
