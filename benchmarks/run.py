"""Starts `side_by_side.py`; see there, or `python benchmarks/run.py --help`."""

import sys
from pathlib import Path


if __name__ == "__main__":
    # Python puts this folder first on the path, where kernels.py would stand in for the package of that name
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from benchmarks.side_by_side import main

    main()
