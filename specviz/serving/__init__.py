"""Continuous batching: the server, its engines, and the policies that choose draft and verify lengths."""
