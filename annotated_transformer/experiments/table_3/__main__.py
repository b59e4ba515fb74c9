"""`python -m annotated_transformer.experiments.table_3`."""

from annotated_transformer.experiments.table_3.miniature_run import main

main()
