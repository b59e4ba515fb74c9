"""onnxruntime reads a folder: logits with and without a cache, greedy search, without PyTorch.

A list of questions on standard input, of answers on standard output, both JSON.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime


class Model:
    def __init__(self, folder):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        self.encoder, self.decoder, self.merged = (
            onnxruntime.InferenceSession(str(Path(folder) / "onnx" / f"{name}.onnx"), options)
            for name in ("encoder_model", "decoder_model", "decoder_model_merged")
        )

    def start(self, source):
        mask = (source != self.config["pad_token_id"]).astype(np.int64)
        found = self.encoder.run(None, {"input_ids": source, "attention_mask": mask})
        return {"encoder_attention_mask": mask, "encoder_hidden_states": found[0]}

    def past(self, n, rows):
        """Of this many rows that count for nothing, as other programs begin."""
        h = self.config["decoder_attention_heads"]
        shape = n, h, rows, self.config["d_model"] // h
        names = (value.name for value in self.merged.get_inputs())
        return {name: np.ones(shape, np.float32) for name in names if name.startswith("past_")}

    def step(self, tokens, state, past, is_cached):
        flag = {"use_cache_branch": np.array([is_cached])}
        found = self.merged.run(None, {"input_ids": tokens, **state, **past, **flag})
        names = [value.name for value in self.merged.get_outputs()]
        present = dict(zip(names[1:], found[1:], strict=True))
        return found[0], {n.replace("present", "past_key_values"): x for n, x in present.items()}


def padded(rows, pad):
    length = max(map(len, rows))
    return np.array([[*row, *[pad] * (length - len(row))] for row in rows], np.int64)


def logits(model, source, target):
    """Of all positions at once; of the first three, and then of one after the other."""
    state = model.start(source)
    whole = model.decoder.run(None, {"input_ids": target, **state})
    parts, past = [], model.past(len(source), 1)
    for start, end in ((0, 3), *((i, i + 1) for i in range(3, target.shape[1]))):
        found, past = model.step(target[:, start:end], state, past, start > 0)
        parts.append(found)
    steps = [np.concatenate(parts, axis=1), *past.values()]
    same = [bool(np.allclose(a, b, atol=1e-5)) for a, b in zip(whole[1:], steps[1:], strict=True)]
    return {"whole": whole[0].tolist(), "steps": steps[0].tolist(), "same": same}


def greedy(model, sources, extra):
    """Ids of each source, which are sorted by length in batches."""
    pad, eos = model.config["pad_token_id"], model.config["eos_token_id"]
    found = [[] for _ in sources]
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    for start in range(0, len(order), 32):
        some = order[start : start + 32]
        state = model.start(padded([sources[i] for i in some], pad))
        past = model.past(len(some), 0)
        tokens = np.full((len(some), 1), model.config["decoder_start_token_id"], np.int64)
        ended, is_cached = np.zeros(len(some), bool), False
        while not ended.all():
            scores, past = model.step(tokens, state, past, is_cached)
            tokens, is_cached = scores[:, -1].argmax(-1)[:, None], True
            for row, i in enumerate(some):
                ended[row] |= tokens[row, 0] == eos
                if not ended[row]:
                    found[i].append(int(tokens[row, 0]))
                    ended[row] = len(found[i]) == len(sources[i]) - 1 + extra
    return found


def answered(asked):
    model = Model(asked["folder"])
    answer = {}
    if "logits" in asked:
        pad = model.config["pad_token_id"]
        answer |= logits(model, *(padded(rows, pad) for rows in asked["logits"]))
    if "greedy" in asked:
        answer["greedy"] = greedy(model, asked["greedy"], 50)
    answer["axes"] = [
        {value.name: value.shape for value in (*session.get_inputs(), *session.get_outputs())}
        for session in (model.encoder, model.merged)
    ]
    assert "torch" not in sys.modules
    return answer


print(json.dumps([answered(asked) for asked in json.load(sys.stdin)]))
