"""`python -m lab.experiments.table_4`."""

from lab.experiments.table_4.parser import main

main()
