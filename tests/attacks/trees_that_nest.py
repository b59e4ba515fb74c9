"""A tree of a hundred thousand brackets, for a parser that calls itself."""

from lab.parsing.trees import read_trees


def make(folder):
    (folder / "trees").write_text("(S " * 100_000)


def trusting(folder):
    def parse(text, at):
        while at < len(text):
            at = parse(text, at + 1) if text[at] == "(" else at + 1
        return at

    parse((folder / "trees").read_text(), 0)


def ours(folder):
    read_trees((folder / "trees").read_text())
