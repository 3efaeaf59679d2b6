"""The HTML report: one self-contained page about one run, drawn from the answers of the tools."""
