"""transformers reads a folder: its texts as ids, logits, greedy and beam search, fine-tuning.

A list of questions on standard input, of answers on standard output, both JSON.
"""

import json
import sys

import torch
import transformers
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

torch.set_num_threads(1)


def padded(rows, pad):
    length = max(map(len, rows))
    return torch.tensor([[*row, *[pad] * (length - len(row))] for row in rows])


def searched(model, sources, beams, extra):
    """Beams of each sentence with their log P, sorted by length in batches, in the order asked."""
    pad, eos = model.config.pad_token_id, model.config.eos_token_id
    found = [[] for _ in sources]
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    size = max(1, 128 // beams)
    for start in range(0, len(order), size):
        some = order[start : start + size]
        source = padded([sources[i] for i in some], pad)
        longest = source.size(1) + extra
        outputs = model.generate(
            input_ids=source, attention_mask=(source != pad).long(), num_beams=beams,
            num_return_sequences=beams, early_stopping="never" if beams > 1 else False,
            length_penalty=0.6, max_length=longest, do_sample=False, output_scores=True,
            return_dict_in_generate=True,
        )  # fmt: skip
        rows = outputs.sequences[:, 1:].tolist()
        scores = getattr(outputs, "sequences_scores", None)
        for k, row in enumerate(rows):
            ended = eos in row
            ids = row[: row.index(eos)] if ended else [i for i in row if i != pad]
            length = len(ids) + ended
            log_p = float(scores[k]) * length**0.6 if scores is not None else 0.0
            found[some[k // beams]].append({"ids": ids, "log_p": log_p, "length": length})
    return found


def by_the_folders_own_settings(folder, texts):
    """What the code on the card does, but for the list, of which the card prints the first."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype="float32").eval()
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    outputs = model.generate(
        **batch, num_return_sequences=4, output_scores=True, return_dict_in_generate=True
    )
    eos, found = model.config.eos_token_id, [[] for _ in texts]
    for k, row in enumerate(outputs.sequences[:, 1:].tolist()):
        ids = row[: row.index(eos)]
        log_p = float(outputs.sequences_scores[k]) * (len(ids) + 1) ** 0.6
        found[k // 4].append({"ids": ids, "log_p": log_p})
    return found


def answered(asked):
    answer = {"version": transformers.__version__}
    if "generate" in asked:
        answer["generated"] = by_the_folders_own_settings(asked["folder"], asked["generate"])
    if "texts" in asked:
        tokenizer = AutoTokenizer.from_pretrained(asked["folder"])
        answer["ids"] = tokenizer(asked["texts"])["input_ids"]
        answer["decoded"] = tokenizer.batch_decode(answer["ids"], skip_special_tokens=True)
    if not set(asked) & {"logits", "greedy", "beams", "save"}:
        return answer
    model, info = AutoModelForSeq2SeqLM.from_pretrained(
        asked["folder"], dtype="float32", output_loading_info=True
    )
    model.eval()
    answer["report"] = sorted(map(str, [*info["missing_keys"], *info["unexpected_keys"]]))
    answer["class"] = type(model).__name__
    pad, eos = model.config.pad_token_id, model.config.eos_token_id
    if "logits" in asked:
        source, target = (padded(rows, pad) for rows in asked["logits"])
        with torch.no_grad():
            found = model(
                input_ids=source, attention_mask=(source != pad).long(), decoder_input_ids=target
            )
        answer["logits"] = found.logits.tolist()
    if "greedy" in asked:
        answer["greedy"] = [found[0]["ids"] for found in searched(model, asked["greedy"], 1, 60)]
    if "beams" in asked:
        answer["beams"] = searched(model, asked["beams"], 4, 51)
    if "save" in asked:
        source = padded([[5, 6, 7, eos], [8, 9, eos]], pad)
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(asked["steps"]):
            optimizer.zero_grad()
            model(input_ids=source, labels=source).loss.backward()
            optimizer.step()
        model.save_pretrained(asked["save"])
    return answer


print(json.dumps([answered(asked) for asked in json.loads(sys.stdin.read())]))
