"""The command line: a verb for each step, from a corpus to a page that translates."""
