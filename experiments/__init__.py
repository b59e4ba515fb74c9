"""The paper's experiments, each one command: `python -m experiments` runs them all and writes book/results/.

    python -m experiments                  all of them (hours; what is finished is not run again)
    python -m experiments --small          the same code at toy size, in minutes, into a temporary folder
    python -m experiments.table_1          one of them
"""
