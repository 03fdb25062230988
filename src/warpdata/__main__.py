"""`python -m warpdata` is `warp`."""

import sys

from warpdata.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
