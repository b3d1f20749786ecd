"""From the name of a model to its weights on disk, its tokenizer and a torch module."""
