"""Published measured runs, kept as data with their sources, and the lookup of the nearest ones."""
