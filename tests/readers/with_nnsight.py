"""nnsight reads and overwrites what happens inside an exported model.

A list of questions on standard input, of answers on standard output, both JSON.
"""

import json
import sys

import torch
from nnsight import NNsight
from transformers import AutoModelForSeq2SeqLM

torch.set_num_threads(1)


@torch.no_grad()
def answered(asked):
    hf = AutoModelForSeq2SeqLM.from_pretrained(asked["folder"], dtype="float32").eval()
    model = NNsight(hf)
    inputs = {
        "input_ids": torch.tensor(asked["source"]),
        "decoder_input_ids": torch.tensor(asked["target"]),
    }
    with model.trace(**inputs):
        cross = model.model.decoder.layers[1].encoder_attn.output[0].save()
    with model.trace(**inputs):
        model.model.decoder.layers[1].encoder_attn.output[0][:] = 0.0
        logits = model.output.logits.save()
    return {"cross": cross.tolist(), "without": logits.tolist()}


print(json.dumps([answered(asked) for asked in json.loads(sys.stdin.read())]))
