"""Readers that turn published measurements into run configurations; one module per kind of source."""
