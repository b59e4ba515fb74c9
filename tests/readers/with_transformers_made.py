"""transformers makes a random model in the form of opus-mt or of wmt19, and says what it computes.

A list of questions on standard input, of answers on standard output, both JSON: `kind`, `folder`,
and `pairs` of sentences, from which the vocabulary is made and which are asked about.
"""

import io
import json
import sys
from collections import Counter
from pathlib import Path

import sacremoses
import sentencepiece
import torch
import transformers

LANGUAGES = ["en", "de"]
SIZES = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}  # fmt: skip


def opus(folder, pairs):
    """Two SentencePiece models and one list of their pieces; </s> is 0, padding is the last."""
    found = {}
    for name, texts in zip(("source", "target"), zip(*pairs)):
        written = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_writer=written, vocab_size=200, minloglevel=2
        )
        (folder / f"{name}.spm").write_bytes(written.getvalue())
        library = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
        found |= dict.fromkeys(library.id_to_piece(i) for i in range(3, library.get_piece_size()))
    pieces = ["</s>", "<unk>", *found, ">>fra<<", "<pad>"]
    write(folder / "vocab.json", {piece: i for i, piece in enumerate(pieces)})
    pad = len(pieces) - 1
    config = transformers.MarianConfig(
        vocab_size=len(pieces), **SIZES, activation_function="swish", scale_embedding=True,
        pad_token_id=pad, eos_token_id=0, decoder_start_token_id=pad, normalize_before=False,
        static_position_embeddings=True, add_final_layer_norm=False,
    )  # fmt: skip
    model = transformers.MarianMTModel(config)
    randomize(model)
    with torch.no_grad():
        model.final_logits_bias.normal_()
        model.model.shared.weight[pad] = 0.0
    model.save_pretrained(folder)
    return model, transformers.MarianTokenizer.from_pretrained(folder), pieces


def wmt19(folder, pairs):
    """The words of both languages cut by byte-pair merges; <s> is 0, padding 1, </s> 2."""
    words = Counter()
    for language, texts in zip(LANGUAGES, zip(*pairs)):
        moses = sacremoses.MosesTokenizer(lang=language)
        for text in texts:
            words.update(moses.tokenize(text, aggressive_dash_splits=True))
    cut = {(*word[:-1], f"{word[-1]}</w>"): n for word, n in words.items()}
    letters = sorted({letter for word in cut for letter in word})
    merges = []
    for _ in range(120):
        count = Counter()
        for word, n in cut.items():
            for pair in zip(word, word[1:]):
                count[pair] += n
        best = max(count, key=lambda pair: (count[pair], pair))
        merges.append(best)
        joined = {}
        for word, n in cut.items():
            parts = []
            for part in word:
                if parts and (parts[-1], part) == best:
                    parts[-1] += part
                else:
                    parts.append(part)
            joined[tuple(parts)] = n
        cut = joined
    merged = (left + right for left, right in merges)
    pieces = list(dict.fromkeys(["<s>", "<pad>", "</s>", "<unk>", *letters, *merged]))
    for name in ("src", "tgt"):
        write(folder / f"vocab-{name}.json", {piece: i for i, piece in enumerate(pieces)})
    (folder / "merges.txt").write_text("".join(f"{left} {right} 7\n" for left, right in merges))
    config = transformers.FSMTConfig(
        langs=LANGUAGES, src_vocab_size=len(pieces), tgt_vocab_size=len(pieces), **SIZES,
        tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.FSMTForConditionalGeneration(config)
    randomize(model)
    model.save_pretrained(folder)
    write(folder / "tokenizer_config.json", {"langs": LANGUAGES, "do_lower_case": False})
    return model, transformers.FSMTTokenizer.from_pretrained(folder), pieces


def write(path, content):
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


@torch.no_grad()
def randomize(model):
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "embed_positions" not in name:
            spread = torch.randn_like(parameter)
            parameter.copy_(0.15 * spread if parameter.dim() > 1 else parameter + 0.2 * spread)
    model.eval()


@torch.no_grad()
def answered(asked):
    folder = Path(asked["folder"])
    folder.mkdir()
    make = {"marian": opus, "fsmt": wmt19}[asked["kind"]]
    model, tokenizer, pieces = make(folder, asked["pairs"])
    batch = tokenizer([*(pair[0] for pair in asked["pairs"]), *asked["texts"]], return_tensors="pt",
                      padding=True)  # fmt: skip
    config = model.config
    target = torch.randint(4, len(pieces) - 1, (len(batch["input_ids"]), 9))
    target[:, 0] = config.decoder_start_token_id
    logits = model(**batch, decoder_input_ids=target, use_cache=False).logits
    found = model.generate(
        **batch, num_beams=1, do_sample=False, max_length=32, forced_eos_token_id=None,
        bad_words_ids=[[config.pad_token_id]],
    )  # fmt: skip
    ids = {"source": batch["input_ids"], "target": target, "greedy": found[:, 1:], "logits": logits}
    special = {"pad": config.pad_token_id, "eos": config.eos_token_id}
    return {**{name: one.tolist() for name, one in ids.items()}, "pieces": pieces, **special}


torch.set_num_threads(1)
print(json.dumps([answered(asked) for asked in json.loads(sys.stdin.read())]))
