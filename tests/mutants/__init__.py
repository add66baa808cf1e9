"""Small changes to the sources, each made alone in a copy of the tree, and whether the tests meant for that module notice."""
