"""`python -m annotated_transformer.experiments.table_1`."""

from annotated_transformer.experiments.table_1.measurement import main

main()
