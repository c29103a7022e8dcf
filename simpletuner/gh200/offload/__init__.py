"""Weights, gradients, optimizer state and EMA in managed memory, through torch's own memory pools."""
