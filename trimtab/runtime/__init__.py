"""Do it, with tensors."""
