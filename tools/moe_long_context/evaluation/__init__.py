"""The evals of the skill: cases, three layers of grading, mutants, triggers, and the report."""
