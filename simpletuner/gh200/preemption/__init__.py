"""Preemption: on a signal all ranks finish their accumulation window, write a checkpoint and exit."""
