"""Will this training config work, told in seconds and without torch: `python -m simpletuner.gh200.preflight CONFIG`."""
