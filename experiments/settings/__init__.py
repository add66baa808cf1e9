"""From a YAML file to the runs it asks for, or to everything that is wrong with it."""
