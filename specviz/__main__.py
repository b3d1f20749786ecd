"""`python -m specviz`: the command line."""

import sys

from specviz.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
