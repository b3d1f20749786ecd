"""The command line, `python -m specviz`: one file per command."""
