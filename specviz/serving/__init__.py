"""A server with continuous batching on the real engine, and the policies that choose verify lengths."""
