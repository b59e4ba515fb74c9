"""The paper's experiments, run: Tables 1, 3 and 4, Figures 3 to 5, and the list of its claims.

    python -m lab.experiments            all of them, in hours
    python -m lab.experiments --small    the same code at toy size, in minutes
    python -m lab.experiments.table_1    one of them

What is finished is kept. Results go to book/results, from which the book's chapters read them.
"""
