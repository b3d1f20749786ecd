"""The forward pass of a target: packed rows of many texts against one ragged KV cache."""
