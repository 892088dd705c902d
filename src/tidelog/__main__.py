"""`python -m tidelog`: the command line."""

import sys

from tidelog.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
