"""`python -m annotated_transformer.experiments.table_4`."""

from annotated_transformer.experiments.table_4.parser import main

main()
