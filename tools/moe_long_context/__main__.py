"""`python -m moe_long_context` is the console command."""

from moe_long_context.adapters.cli import main

if __name__ == "__main__":
    main()
