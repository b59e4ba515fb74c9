"""An opus-mt folder whose pytorch_model.bin is a program, as a pickle can be."""

import json

import attack
import torch

from annotated_transformer.extras.formats.importing import import_checkpoint


class Program:
    def __reduce__(self):
        return exec, (f"open({attack.MARK!r}, 'w').close()",)


def make(folder):
    (folder / "config.json").write_text(json.dumps({"model_type": "marian"}))
    (folder / "model.safetensors").unlink()
    torch.save({"model.shared.weight": Program()}, folder / "pytorch_model.bin")


def trusting(folder):
    with open(folder / "pytorch_model.bin", "rb") as file:
        torch.load(file, weights_only=False)


def ours(folder):
    import_checkpoint(folder, folder / "imported")
