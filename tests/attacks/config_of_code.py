"""A configuration that is executed, as some training scripts do with theirs."""

import attack


def make(folder):
    (folder / "config.json").write_text(f"open({attack.MARK!r}, 'w').close()")


def trusting(folder):
    exec((folder / "config.json").read_text())
