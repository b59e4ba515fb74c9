"""From a file of sentence pairs to a translator, a report and a page, in one command."""
