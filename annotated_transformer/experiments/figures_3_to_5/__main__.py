"""`python -m annotated_transformer.experiments.figures_3_to_5`."""

from annotated_transformer.experiments.figures_3_to_5.findings import main

main()
