"""From a dead run to the next configuration: log reading, failure causes, fixes, and comparison of two runs."""
