"""Proof that speculative decoding changes nothing: token by token, by counts, and by tests of a drafter."""
