"""`python -m lab.experiments.table_3`."""

from lab.experiments.table_3.miniature_run import main

main()
