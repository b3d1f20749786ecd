"""The decoding loop, and a run of it from a prompt to a Trace."""
