"""A config.json that is a link to a device, of which reading has no end."""

import json


def make(folder):
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("/dev/zero")


def trusting(folder):
    json.loads((folder / "config.json").read_text())
