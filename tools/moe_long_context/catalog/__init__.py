"""Models and GPUs as data with sources, and a reader of Hugging Face config.json files."""
