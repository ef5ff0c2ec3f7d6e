"""`python -m dspark_hf.cli`, the same as `dspark-hf`."""

from . import main


main()
