"""A run that is taken away: on a signal it finishes its window, writes a checkpoint and leaves; all ranks together."""
