"""One module for each command; packages keep their `python -m` entry points, which call these."""
