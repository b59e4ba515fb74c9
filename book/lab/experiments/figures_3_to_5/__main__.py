"""`python -m lab.experiments.figures_3_to_5`."""

from lab.experiments.figures_3_to_5.findings import main

main()
