"""The decoding loop of speculative decoding, and runs of it: from a prompt to a Trace."""
