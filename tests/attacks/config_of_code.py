"""A configuration that is executed, as some training scripts do with theirs."""

import attack

from annotated_transformer.checkpoint.directory import load_model


def make(folder):
    (folder / "config.json").write_text(f"open({attack.MARK!r}, 'w').close()")


def trusting(folder):
    exec((folder / "config.json").read_text())


def ours(folder):
    load_model(folder)


if __name__ == "__main__":
    attack.main()
