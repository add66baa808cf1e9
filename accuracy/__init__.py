"""What real engines did, and how far ours are from it: measured runs, their repetition, fits to them, and the comparison."""
