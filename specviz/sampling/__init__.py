"""Speculative sampling: the distributions p and q, and the accept rule, as pure functions over tensors."""
