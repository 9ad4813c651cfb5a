"""`python -m stepfeed`."""

from stepfeed.command import main

main()
