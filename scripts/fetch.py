"""`repro fetch`, under the name that it had."""

import sys

from repro.commands.fetch import main

if __name__ == "__main__":
    sys.exit(main())
