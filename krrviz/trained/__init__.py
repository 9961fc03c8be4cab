"""Transformers that learn the task by gradient descent, beside the one built by hand."""
