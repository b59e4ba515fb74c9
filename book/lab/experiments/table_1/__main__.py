"""`python -m lab.experiments.table_1`."""

from lab.experiments.table_1.measurement import main

main()
