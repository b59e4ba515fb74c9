"""peft puts LoRA on an exported model, trains it, merges it and saves it.

A list of questions on standard input, of answers on standard output, both JSON.
"""

import json
import sys

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSeq2SeqLM

torch.set_num_threads(1)


def answered(asked):
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_pretrained(asked["folder"], dtype="float32")
    model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    source, target = torch.tensor(asked["source"]), torch.tensor(asked["target"])
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
    losses = []
    for _ in range(asked["steps"]):
        optimizer.zero_grad()
        loss = model(input_ids=source, labels=target).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    merged = model.merge_and_unload().eval()
    merged.save_pretrained(asked["save"])
    with torch.no_grad():
        logits = merged(input_ids=source, decoder_input_ids=target).logits
    return {"losses": losses, "logits": logits.tolist()}


print(json.dumps([answered(asked) for asked in json.loads(sys.stdin.read())]))
