"""The whole pipeline with one command: `make demo`, or `python -m demo`."""
