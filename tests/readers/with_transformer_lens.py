"""TransformerLens reads each head of an exported model, and takes one out.

A list of questions on standard input, of answers on standard output, both JSON.
"""

import json
import sys

import torch
from transformer_lens.model_bridge import TransformerBridge

torch.set_num_threads(1)


def without_head_0(z, hook):
    z[:, :, 0] = 0.0
    return z


@torch.no_grad()
def answered(asked):
    model = TransformerBridge.boot_transformers(asked["folder"], device="cpu").eval()
    source, target = torch.tensor(asked["source"]), torch.tensor(asked["target"])
    logits, seen = model.run_with_cache(source, decoder_input=target)
    hooks = [("decoder_blocks.1.cross_attn.hook_z", without_head_0)]
    without = model.run_with_hooks(source, decoder_input=target, fwd_hooks=hooks)
    return {
        "logits": logits.tolist(),
        "weights": seen["decoder_blocks.1.cross_attn.hook_pattern"].tolist(),
        "without": without.tolist(),
    }


print(json.dumps([answered(asked) for asked in json.loads(sys.stdin.read())]))
