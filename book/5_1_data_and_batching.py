# %% [markdown]
# # 5.1 Data and batching
#
# *Section 5.1 of the paper {cite}`vaswani2017attention`: what the model is trained on, how text becomes numbers, and
# how sentences are put together into batches.*
#
# A model reads arrays of integers. People write sentences, of any length, in two languages, with umlauts and typing
# errors. In this chapter we go from sentences to arrays: we run byte-pair encoding with a pencil, build the three
# arrays that a Transformer learns from, fill batches by tokens, measure their padding, and split a text so that the
# test set is a test.
#
# Our text is the book's default corpus, everyday sentences from [Tatoeba](https://tatoeba.org) {cite}`tatoeba`
# (Tatoeba contributors, CC BY 2.0 FR).

# %% tags=["remove-cell"]
import random
import tempfile
import textwrap
import unicodedata
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.colors import ListedColormap
from torch.nn import functional as F
from torch.testing import assert_close

# %% tags=["remove-cell"]
from annotated_transformer import (
    Batch, ConfigError, ModelConfig, Tokenizer, Transformer, corpus, make_batch, token_batches)
from lab.exercises import check
from lab.experiments.result_file import read_result
from annotated_transformer.fast.packing import packed_decode
from lab.display import PALETTE, show, use_style
from annotated_transformer.config import count_parameters
from annotated_transformer.data.batching import group_by_length
from annotated_transformer.data.parallel_text import fold, split_by_group

use_style()

# %% tags=["hide-input"] mystnb={"image": {"alt": "Five boxes from left to right, joined by arrows. Pairs of sentences, such as It is raining and Es regnet; cut into pieces by the tokenizer; looked up as ids; grouped by length; padded to the three rectangles source, target_in and target_out."}, "figure": {"caption": "This chapter's path, from sentences to a batch.", "name": "fig-data-path"}}
figure, ax = plt.subplots(figsize=(7, 1.5), layout="constrained")
steps = [("pairs", "It is raining.\nEs regnet."), ("pieces", "▁It ▁is ▁rain ing .\n▁Es ▁reg net ."),
         ("ids", "one integer\nper piece"), ("groups", "of similar\nlength"),
         ("batch", "source\ntarget_in\ntarget_out")]
for x, (title, text) in zip((0, 1.25, 2.45, 3.4, 4.35), steps):
    box = {"boxstyle": "round,pad=0.5", "facecolor": "#e8f1f8", "edgecolor": PALETTE[0]}
    ax.text(x, 0, text, ha="center", va="center", fontsize=9, bbox=box)
    ax.text(x, 0.75, title, ha="center", weight="bold", fontsize=10)
    if x:
        ax.text(x - 0.54 - 0.1 * (title in ("pieces", "ids")), 0, "→", ha="center", va="center", fontsize=16)
ax.set(xlim=(-0.5, 4.85), ylim=(-0.8, 1.1)), ax.axis("off")
plt.show()

# %% [markdown]
# (section-bpe)=
# ## Byte-pair encoding by hand
#
# In which units should we cut a sentence? A vocabulary of whole *words* is too large: the model has one row of its
# embedding for each unit, and German makes new compounds every day. *Characters* are few, but turn ten words into fifty
# symbols, and attention pays for the square of the length. **Byte-pair encoding** (BPE) lies in between: it keeps
# frequent words whole and cuts rare ones in parts. It began as a way to compress files {cite}`gage1994new`, and
# {cite:t}`sennrich2016neural` brought it to translation.
#
# We start with single characters as symbols. In each round we count all neighbouring pairs of symbols in the text, and
# merge the most frequent pair into a new symbol:
#
# $$
# (a, b)^{*} = \arg\max_{(a, b)} \sum_{\text{words } w} n_w \cdot \#\{\, i : w_i = a,\ w_{i+1} = b \,\}
# $$ (data-bpe)
#
# $n_w$ is how often the word $w$ occurs, and pairs are counted within words only. All that is learned is the list of
# merges, in their order. Let us take six words; `▁` stands for the space before a word.

# %%
counts = {"low": 1, "lower": 7, "newest": 6, "widest": 5, "lowest": 9,
          "slow": 4}
words = {("▁", *word): n for word, n in counts.items()}
for word, n in words.items():
    print(n, "times", *word)

# %% [markdown]
# One round has two steps. The first finds the pair of equation {eq}`data-bpe`; among equally frequent pairs it takes the
# smallest in string order. Each word counts with its frequency $n_w$: if it counted once, the first merge would be *l o*
# here, and no error would tell us.

# %%
def pair_counts(words):
    counter = Counter()
    for word, n in words.items():
        for pair in zip(word, word[1:]):
            counter[pair] += n
    return counter

def most_frequent_pair(words):
    counter = pair_counts(words)
    return min(counter, key=lambda pair: (-counter[pair], pair))

print(most_frequent_pair(words))

# %% [markdown]
# The second walks through a word and joins every occurrence of the pair, from left to right. A symbol goes into one merge
# only, so of three *a* in a row two are joined.

# %%
def merge(word, pair):
    merged, i = [], 0
    while i < len(word):
        hit = word[i:i + 2] == pair
        merged.append("".join(pair) if hit else word[i])
        i += 2 if hit else 1
    return tuple(merged)

print(merge(("a", "a", "a"), ("a", "a")))

# %% tags=["hide-cell"]
check("5.1-pair", most_frequent_pair)
check("5.1-merge", merge)
assert most_frequent_pair({("▁", *word): 1 for word in counts}) == ("l", "o")
assert merge(("a", "a", "a"), ("a", "a")) == ("aa", "a")

# %% [markdown]
# Learning is a loop over the two:

# %%
merges, joined = [], words
for _ in range(7):
    pair = most_frequent_pair(joined)
    merges.append(pair)
    times = pair_counts(joined)[pair]
    print(f"{len(merges)}. {times:3d} times  {pair[0]} + {pair[1]}")
    joined = {merge(word, pair): n for word, n in joined.items()}
print("  ".join(" ".join(word) for word in joined))

# %% [markdown]
# Follow the first round with a pencil: *w e* is in *lower* (7), *newest* (6) and *lowest* (9), 22 in all, one more than
# *l o* and *o w*. To **encode** a word, even a new one, we apply the merges in the order in which we learned them.

# %%
def encode(word):
    symbols = ("▁", *word)
    for pair in merges:
        symbols = merge(symbols, pair)
    return list(symbols)

for word in ("lowest", "slowest", "west", "wow"):
    print(f"{word:8}", *encode(word))

# %% tags=["hide-input"]
def draw_merges(ax, word):
    nodes = [(symbol, x, 0) for x, symbol in enumerate(("▁", *word))]
    for _, x, _ in nodes:
        ax.text(x, -0.45, nodes[x][0], ha="center", va="center", fontsize=11)
    for level, pair in enumerate(merges, 1):
        for i in range(len(nodes) - 1, 0, -1):
            (a, xa, ya), (b, xb, yb) = nodes[i - 1 : i + 1]
            if (a, b) == pair:
                ax.plot([xa, xa, xb, xb], [ya, level, level, yb], color=PALETTE[0])
                ax.text((xa + xb) / 2, level + 0.12, a + b, ha="center", fontsize=10, color=PALETTE[1])
                nodes[i - 1 : i + 1] = [(a + b, (xa + xb) / 2, level)]

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two merge trees over the letters of lowest and slowest. In lowest, merge 1 joins w and e, merge 2 l and o, merge 3 s and t, merge 4 the space mark and lo, merge 5 adds we and merge 6 adds st, until one symbol is left. In slowest the space mark and the first s stay alone, and lo, we and st stay three symbols."}, "figure": {"caption": "The merges of two words, from below: a bracket at height $m$ is the $m$-th merge that was learned. *slowest* never occurred, and ends as five symbols.", "name": "fig-bpe-tree"}}
figure, axes = plt.subplots(1, 2, figsize=(7, 2.9), layout="constrained", sharey=True)
for ax, word in zip(axes, ("lowest", "slowest")):
    draw_merges(ax, word)
    ax.set(xlim=(-0.6, len(word) + 0.6), ylim=(-0.9, 7), xticks=[], yticks=range(1, 7), title=word)
    ax.spines["bottom"].set_visible(False)
axes[0].set_ylabel("number of the merge")
plt.show()

# %% [markdown]
# SentencePiece {cite}`kudo2018sentencepiece` is a library that learns such merges from raw text, and the package's
# `Tokenizer` uses it. From our six words it learns the same seven merges in the same order.

# %% tags=["hide-cell"]
text = [word for word, n in counts.items() for _ in range(n)]
characters = set("▁".join(text)) | {"▁"}
toy = Tokenizer.train(text, vocab_size=4 + 256 + len(characters) + 7)
learned = toy.pieces(range(260, toy.vocab_size))
assert learned[:7] == ["".join(pair) for pair in merges] and set(learned[7:]) == characters
for word in ("slowest", "lowest", "west", "wow"):
    assert encode(word) == toy.pieces(toy.encode(word))

# %% [markdown]
# The paper slips here: section 5.1 cites byte-pair encoding as [3], which is {cite:t}`britz2017massive`, a study of
# architectures. Section 4 rightly cites [31], {cite:t}`sennrich2016neural`.

# %% [markdown]
# ## A tokenizer that loses nothing
#
# A tokenizer must give back every text, since people read what the model writes, and it needs an answer to every
# character. Ours has a vocabulary of four parts:
#
# | ids | pieces | for |
# |---|---|---|
# | 0 to 3 | `<pad>`, `<s>`, `</s>`, `<unk>` | padding, beginning, end; the fourth is never produced |
# | 4 to 259 | `<0x00>` to `<0xFF>` | the 256 bytes, for characters without a piece (**byte fallback**) |
# | then | merges, in the order learned | |
# | last | the characters of the text, except the rarest | |
#
# We learn one from the first 10,000 pairs of the *training* split, both languages together. A vocabulary that has seen
# the test set would have pieces for its rare words, as no honest run could.

# %%
splits = {split: corpus.load("tatoeba-en-de", split) for split in corpus.SPLITS}
pairs = splits["train"][:10_000]
tokenizer = Tokenizer.train([text for pair in pairs for text in pair],
                            vocab_size=2000)

for text in ("I am too old for this world.", "Ich bin zu alt für diese Welt.",
             "Łódź 🦊", "  two  spaces "):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    print(*tokenizer.pieces(ids))

# %% [markdown]
# The space is part of a piece, so decoding is easy: join the pieces and turn `▁` back into a space. A character without
# a piece becomes its bytes in UTF-8, and the fox `🦊` has four of them. One thing changes, on purpose: **NFKC** is
# Unicode's normal form for what looks alike and is typed differently, such as *ü* and *u* with two dots put upon it. It
# goes further than looks: a raised 2 becomes a plain one.

# %% tags=["hide-cell"]
for text in ("gru\u0308n", "ﬁnds", "a\u00a0cow", "x²"):
    assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFKC", text)
assert tokenizer.encode("gru\u0308n") == tokenizer.encode("grün")
for text in ("</s> is text", "Anna sieht die Kuh."):  # text never makes a special id
    assert tokenizer.decode(tokenizer.encode(text)) == text and min(tokenizer.encode(text)) >= 4
test_only = ["Anna visits Kuala Lumpur."] * 20  # a vocabulary that peeks
peeking = Tokenizer.train([text for pair in pairs for text in pair] + test_only, vocab_size=2000)
assert len(peeking.encode("Kuala Lumpur")) < len(tokenizer.encode("Kuala Lumpur"))

# %% [markdown]
# (data-cuts)=
# ### Where the tokenizer hurts
#
# Losing nothing is not enough. The pieces are what the model *sees*, and it sees no letters inside them. Here are some
# texts in the pieces of the book's own model:

# %%
from annotated_transformer import Translator

translator = Translator.from_checkpoint("model")
cut = translator.tokenizer
for text in ("It was 7.", "It was 1999.", "12345", "hello", "Hello", "HELLO",
             "I am tired.", "I  am  tired.", "Kuala Lumpur"):
    print(f"{text:14}", *cut.pieces(cut.encode(text)))

# %% [markdown]
# A number is cut into its digits, a name into pieces that it shares with words. *HELLO* shares no piece with *hello* or *Hello*,
# and each second space is another piece. How much does it cost? We ask for numbers and for names that
# nobody has, twenty of each length, and count those that arrive unharmed in the translation.

# %% tags=["nbval-ignore-output"]
def share_copied(words, sentence):
    lines = translator.translate([sentence.format(word) for word in words])
    return sum(map(str.__contains__, lines, words)) / len(words)
draw, copied = random.Random(0), {}
syllables = ["ka", "lo", "mi", "ran", "tes", "vu", "dor", "pel", "sha", "qui",
             "zor", "bek"]
for n in range(1, 6):
    numbers = [str(draw.randrange(10 ** (n - 1), 10**n)) for _ in range(20)]
    names = ["".join(draw.choices(syllables, k=n)).title() for _ in range(20)]
    copied[n] = (share_copied(numbers, "I have {} books."),
                 share_copied(names, "{} is my friend."))
    n_pieces = sum(len(cut.encode(name)) for name in names) / 20
    print(f"{n} digits: {copied[n][0]:.0%} copied    {n} syllables, "
          f"{n_pieces:.1f} pieces: {copied[n][1]:.0%}")

# %% tags=["remove-cell"]
assert copied[5][1] < copied[2][1] and min(copied[n][0] for n in copied) >= 0.8

# %% [markdown]
# Numbers arrive, because training often put others in their places. Of the names, only some of five syllables are lost: each piece has to be copied by itself, and one wrong is enough. A person
# copies letters. Much of what a model seems bad at, spelling, counting letters, arithmetic, begins at this cut.

# %% [markdown]
# :::{dropdown} Other ways to cut: unigram and word-pieces
# The **unigram** model {cite}`kudo2018subword` starts with many pieces, gives each a probability $p(x_i)$, and removes
# those that the text needs least. It chooses among *all* ways to cut a text the one of the largest product:
#
# $$
# x^{*} = \arg\max_{x_1 \ldots x_m \,=\, \text{text}} \; \sum_{i=1}^{m} \log p(x_i)
# $$ (data-unigram)
#
# For English-French the paper splits text "into a 32000 word-piece vocabulary" and cites {cite:t}`wu2016google`.
# **Word-pieces** {cite}`schuster2012japanese` are built up as in BPE, but each time by the piece that raises the
# *likelihood* of the text most. Our package has BPE, the default, and unigram.
# :::

# %% tags=["hide-cell"]
from sentencepiece import SentencePieceProcessor

sentences = [text for pair in pairs for text in pair]
unigram = Tokenizer.train(sentences, vocab_size=600, model_type="unigram")
processor = SentencePieceProcessor(model_proto=unigram.model_bytes)
log_p = {processor.id_to_piece(i): processor.get_score(i) for i in range(260, 600)}

def cuts(text):  # every way to cut the text into pieces
    return [[]] if not text else [[text[:n], *rest] for n in range(1, len(text) + 1)
                                  if text[:n] in log_p for rest in cuts(text[n:])]

for word in ("Lehrerin", "unkind", "something"):
    best = max(cuts("▁" + word), key=lambda way: sum(log_p[piece] for piece in way))
    assert best == unigram.pieces(unigram.encode(word))

# %% [markdown]
# ## One vocabulary for two languages
#
# In section 5.1 English and German have "a shared source-target vocabulary", and section 3.4 needs it: one matrix $E$
# is the embedding of the source, that of the target and the last linear layer ([chapter
# 3.4](3_4_embeddings_and_softmax.ipynb)). It also cuts a name the same way on both sides, so that copying a name means
# copying ids. Which pieces do our two languages use?

# %%
sides = [[pair[side] for pair in pairs] for side in (0, 1)]
used = [Counter(i for ids in tokenizer.encode_batch(side) for i in ids)
        for side in sides]
english, german = ({i for i, times in counter.items() if times >= 10}
                   for counter in used)
print("used ten times or more:", len(english - german),
      "pieces in English only,", len(german - english), "in German only,",
      len(english & german), "in both, such as")
print(*tokenizer.pieces(sorted(english & german))[:18])

# %% tags=["hide-input"] mystnb={"image": {"alt": "The sentence I think exams are ruining education and its German translation, cut into coloured boxes. Short pieces such as r, u, in and the full stop have the colour for both languages, whole words such as think and dass that of one."}, "figure": {"caption": "A pair of the test set in pieces. Green: used in both languages; blue: in English only; orange: in German only (fewer than ten times in the other).", "name": "fig-pieces"}}
figure, ax = plt.subplots(figsize=(7, 1.2), layout="constrained")
for row, text in enumerate(splits["test"][4]):
    x = 0
    for i in tokenizer.encode(text):
        piece = tokenizer.pieces([i])[0]
        colour = PALETTE[2] if i in english & german else PALETTE[row]
        width = 0.55 + 0.42 * len(piece)
        ax.add_patch(plt.Rectangle((x, -row), width - 0.12, 0.75, color=colour, alpha=0.25))
        ax.text(x + width / 2 - 0.06, 0.36 - row, piece, ha="center", va="center", fontsize=9)
        x += width
ax.set(xlim=(0, x), ylim=(-1.1, 0.85)), ax.axis("off")
plt.show()

# %% [markdown]
# **Separate** vocabularies are two ranges of rows in one matrix: the target's ids begin where the source's end, and the
# model's code stays as it is. With the same number of learned pieces in all, each side has half, and our sentences
# become longer, by 4 percent in English and 7 percent in German.

# %% tags=["hide-cell", "row-S6"]
apart = [Tokenizer.train(side, vocab_size=260 + 870) for side in sides]

def tokens_per_sentence(one, side):
    texts = [pair[side] for pair in splits["test"]]
    return sum(map(len, one.encode_batch(texts))) / len(texts)

for side in (0, 1):
    longer = tokens_per_sentence(apart[side], side) / tokens_per_sentence(tokenizer, side)
    assert f"{longer:.2f}" == ("1.04", "1.07")[side]
first_target_id = apart[0].vocab_size
source_ids, target_ids = apart[0].encode(pairs[0][0]), [first_target_id + i for i in apart[1].encode(pairs[0][1])]
model = Transformer(ModelConfig.tiny(vocab_size=2 * 1130, N=1))
assert model(torch.tensor([source_ids]), torch.tensor([target_ids])).shape == (1, len(target_ids), 2260)
assert max(source_ids) < first_target_id <= min(target_ids)

# %% [markdown]
# The paper has about 37,000 pieces, this chapter 2,000. More pieces make shorter sequences, so less work in every
# layer. But each piece is a row of $d_{\text{model}}$ numbers, which has to occur often enough to be learned: in the
# base model 37,000 rows are 30 percent of all parameters. The first merges, the most frequent, shorten the text most.

# %% tags=["hide-cell"]
for V, share in ((8_000, 0.08), (37_000, 0.30), (100_000, 0.54)):
    assert round(V * 512 / count_parameters(ModelConfig.base(V)), 2) == share
sizes = (400, 600, 1000, 2000, 4000, 8000, 16_000)
lengths = {size: [tokens_per_sentence(Tokenizer.train(sentences, size), side) for side in (0, 1)] for size in sizes}
for side in (0, 1):
    curve = [lengths[size][side] for size in sizes]
    assert curve == sorted(curve, reverse=True)
try:
    Tokenizer.train(sentences, vocab_size=100_000)
except ConfigError as error:
    print(error)  # rows of the embedding that would never be trained
else:
    raise AssertionError("100,000 pieces from 20,000 short sentences")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Line chart of tokens per sentence against the size of the vocabulary, 400 to 16,000 pieces on a logarithmic axis, for English and German. Both curves fall steeply at first, from 25 and 30 tokens, and end near 10, above dotted lines at the number of words per sentence."}, "figure": {"caption": "Tokens per sentence of the test split. Dotted: words per sentence, 7.2 in both languages, which no curve can cross, since pieces end at a space.", "name": "fig-vocabulary-size"}}
figure, ax = plt.subplots(figsize=(5.5, 2.9), layout="constrained")
for side, language, marker in ((0, "English", "o"), (1, "German", "s")):
    ax.plot(sizes, [lengths[size][side] for size in sizes], marker=marker, color=PALETTE[side], label=language)
    n_words = sum(len(pair[side].split()) for pair in splits["test"]) / len(splits["test"])
    ax.axhline(n_words, color=PALETTE[side], linestyle=":")
ax.set(xscale="log", xlabel="size of the vocabulary", ylabel="tokens per sentence", ylim=(0, None))
ax.set_xticks(sizes, [f"{size:,}" for size in sizes])
ax.minorticks_off()
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# (section-shift)=
# ## Shifted right: source, target_in, target_out
#
# The decoder predicts the next token from the tokens before it. In training we know the whole target, $y_1 \ldots y_n$.
# The decoder reads it behind a mark for the beginning (bos) and must predict it followed by an end mark (eos). Both
# have $n + 1$ tokens:
#
# $$
# \begin{array}{lccccc}
# \text{position} & 1 & 2 & 3 & \cdots & n+1 \\
# \text{target\_in} & \text{bos} & y_1 & y_2 & \cdots & y_n \\
# \text{target\_out} & y_1 & y_2 & y_3 & \cdots & \text{eos}
# \end{array}
# $$ (data-shift)
#
# These are the "outputs (shifted right)" of Figure 1. The answer at each position is the token that the decoder reads
# at the *next* one, and the causal mask hides the later positions.

# %% [markdown] tags=["exercise"]
# ```{exercise} Shift right (check 5.1-shift)
# :label: data-ex-shift
#
# Write `shift(target, bos_id, eos_id)` for a list of ids; it returns `(target_in, target_out)`. Check it with
# `check("5.1-shift", shift)`.
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# Both lists are one longer than the target.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} data-ex-shift
# :class: dropdown
#
# `[bos_id, *target], [*target, eos_id]`.
# ```

# %% tags=["hide-cell", "solution"]
def shift(target, bos_id, eos_id):
    return [bos_id, *target], [*target, eos_id]

check("5.1-shift", shift)

# %% [markdown]
# `make_batch` does it for several pairs, adds eos to each source, and fills up with padding on the right.

# %%
show(make_batch)

# %%
two = [("It is raining.", "Es regnet."),
       ("I am too old for this world.", "Ich bin zu alt für diese Welt.")]
batch = make_batch([(tokenizer.encode(source), tokenizer.encode(target))
                    for source, target in two])
for name, tokens in zip(Batch._fields, batch[:3]):
    print(f"{name:11}", tuple(tokens.shape))
print("n_tokens", batch.n_tokens)

# %% tags=["hide-input"] mystnb={"image": {"alt": "Three tables of two rows, source, target_in and target_out, with one piece per cell. In target_in both rows begin with the mark s, in target_out they end with the mark slash s, so each piece is one column further left. Shorter rows are filled with grey cells of padding."}, "figure": {"caption": "The batch. Orange: bos and eos. Grey: padding. `target_out` is `target_in`, one place further left.", "name": "fig-shift"}}
figure, axes = plt.subplots(3, figsize=(7, 3.2), layout="constrained")
for ax, name, tokens in zip(axes, Batch._fields, batch[:3]):
    for row, ids in enumerate(tokens.tolist()):
        for x, (i, piece) in enumerate(zip(ids, tokenizer.pieces(ids))):
            colour = "#d0d0d0" if i == 0 else "#f6c9a4" if i in (1, 2) else "#d5e6f3"
            ax.add_patch(plt.Rectangle((x, -row), 0.96, 0.92, color=colour))
            ax.text(x + 0.48, 0.46 - row, piece, ha="center", va="center", fontsize=8.5)
    ax.set(xlim=(0, 10), ylim=(-1.05, 1)), ax.axis("off")
    ax.set_title(f"{name} {tuple(tokens.shape)}", loc="left", fontsize=10)
plt.show()

# %% [markdown]
# `n_tokens` counts the real tokens of `target_out`, eos included: the predictions that the model has to make. The masks
# follow from the arrays, so we store none:
#
# - *Source*: `padding_mask(source, pad_id)`, in the encoder and in the encoder-decoder attention.
# - *Target*: the causal mask. Padding on the right comes after every real position, where the causal mask lets no real
#   position look, and at the padding itself the loss is left out.
#
# We test this rule: when we append padding to everything, the logits at real positions stay the same. With padding
# on the *left* they would change: the decoder would read it.

# %% tags=["hide-cell", "row-E17"]
for row, (_, target) in enumerate(two):
    ids = tokenizer.encode(target)
    target_in, target_out = [1, *ids], [*ids, 2]
    n = len(target_in)
    assert batch.target_in[row, :n].tolist() == target_in
    assert batch.target_out[row, :n].tolist() == target_out
    assert torch.equal(batch.target_in[row, 1:n], batch.target_out[row, :n - 1])
    assert batch.target_in[row, n:].sum() == batch.target_out[row, n:].sum() == 0
assert batch.n_tokens == (batch.target_out != 0).sum()

# %% tags=["row-S7"]
torch.manual_seed(0)
model = Transformer(ModelConfig.tiny(vocab_size=2000, N=2)).eval()
real, T = batch.target_out != 0, batch.target_in.size(1)
left = torch.stack([row.roll(int((row == 0).sum())) for row in batch.target_in])
with torch.no_grad():
    logits = model(batch.source, batch.target_in)
    wider = model(F.pad(batch.source, (0, 5)), F.pad(batch.target_in, (0, 5)))
    on_the_left = model(batch.source, left)
assert_close(wider[:, :T][real], logits[real], atol=1e-5, rtol=1e-5)
change = (on_the_left[0, -1] - logits[0][real[0]][-1]).abs().max()
print(f"five columns more: {int(real.sum())} distributions unchanged; "
      f"padding on the left: a logit moves by {change:.1f}")
assert change > 0.1

# %% [markdown]
# (section-token-batches)=
# ## Batches by tokens, and their padding
#
# A batch is a rectangle: B rows as long as its longest sentence, and the machine computes the padding like everything
# else. We call the share of padding the **waste**, with $n_b$ tokens in row $b$:
#
# $$
# \text{waste} = 1 - \frac{\sum_b n_b}{B \cdot \max_b n_b}
# $$ (data-waste)
#
# The paper keeps it small: "Sentence pairs were batched together by approximate sequence length." And it fixes the size
# of a batch in *tokens*, about 25,000 on each side, so that every step is about the same amount of work and memory.

# %%
def groups_of(lengths, max_tokens):
    """Lists of indices, for (source, target) lengths."""
    groups, group = [], []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i][::-1]):
        longest = max(max(lengths[j]) for j in [*group, i])
        if (len(group) + 1) * longest > max_tokens:
            groups, group = [*groups, group], []
        group = [*group, i]
    return [*groups, group]

print(groups_of([(2, 3), (9, 8), (3, 2), (10, 10), (2, 2)], max_tokens=20))

# %% [markdown]
# A group ends where one sentence more would make the rectangle, on either side, larger than `max_tokens`. In the package's
# `token_batches` ties come in random order, so each epoch has other groups, and the groups are shuffled, so that the model
# meets long and short sentences in turn. We compare this with 64 sentences at random.

# %%
def waste(batches):
    sides = [side for one in batches for side in (one.source, one.target_out)]
    n_real = sum(int((side != 0).sum()) for side in sides)
    return 1 - n_real / sum(side.numel() for side in sides)

ids = list(zip(*(tokenizer.encode_batch(side) for side in sides)))
shuffled = random.Random(1).sample(ids, len(ids))
at_random = [make_batch(shuffled[i : i + 64]) for i in range(0, len(ids), 64)]
by_length = list(token_batches(ids, max_tokens=1000, seed=1))
for name, batches in (("64 sentences, at random", at_random),
                      ("1,000 tokens, by length", by_length)):
    sizes_of = [len(batch.source) for batch in batches]
    largest = max(batch.source.numel() for batch in batches)
    print(f"{name}: {min(sizes_of)} to {max(sizes_of)} sentences, "
          f"at most {largest:,} source tokens, waste {waste(batches):.2f}")

# %% tags=["remove-cell"]
few_lengths = [(2, 3), (9, 8), (3, 2), (10, 10), (2, 2)]
theirs = group_by_length(np.array(few_lengths), 20)
assert [sorted(group) for group in theirs] == [sorted(group) for group in groups_of(few_lengths, 20)]
assert sum(len(batch.source) for batch in by_length) == len(ids)  # every pair once
assert max(max(batch.source.numel(), batch.target_in.numel()) for batch in by_length) <= 1000
assert waste(at_random) > 0.4 and waste(by_length) < 0.12
resumed = list(token_batches(ids, max_tokens=1000, seed=1, start=7))  # after an interruption
assert len(resumed) == len(by_length) - 7
assert all(torch.equal(a.source, b.source) for a, b in zip(resumed, by_length[7:]))
other = next(iter(token_batches(ids, max_tokens=1000, seed=1, epoch=1)))
assert not torch.equal(other.source, by_length[0].source)

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two rectangles of source tokens. Left, 64 sentences at random: rows of very different length, about half of the rectangle is grey padding. Right, grouped by length: almost the whole rectangle is blue."}, "figure": {"caption": "The source of one batch of each kind. Blue: real tokens. Grey: padding. The right one has the median waste of its kind.", "name": "fig-padding"}}
figure, axes = plt.subplots(1, 2, figsize=(6, 2.8), layout="constrained")
median = sorted(by_length, key=lambda batch: waste([batch]))[len(by_length) // 2]
for ax, batch, title in zip(axes, (at_random[1], median), ("at random", "grouped by length")):
    ax.imshow(batch.source != 0, cmap=ListedColormap(["#d0d0d0", PALETTE[0]]), aspect="auto",
              vmin=0, vmax=1, interpolation="nearest")
    ax.set(xlabel="position", title=f"{title}: {len(batch.source)} rows")
axes[0].set_ylabel("sentence")
plt.show()

# %% [markdown]
# Since the number of real tokens still varies from batch to batch, we divide the loss by that number, as [chapter
# 5.2](5_2_training.ipynb) shows. We can avoid even the padding that is left: only attention has to know which positions
# belong to one sentence, so all other layers can take the real positions side by side. The package trains with this
# **packing** on a CPU; neither values nor gradients change.

# %% tags=["hide-cell"]
def gradients(x):
    return torch.autograd.grad(x.sum(), list(model.parameters()), allow_unused=True)

source, target_in, target_out, _ = median
packed, positions = packed_decode(model, source, target_in)
mask = model.source_mask(source)
padded = model.decode(target_in, model.encode(source, mask), mask)
padded = padded.flatten(0, 1)[positions]  # the same positions of the rectangle
real = target_in.flatten()[positions] != 0
assert_close(packed[real], padded[real], atol=1e-5, rtol=1e-5)
assert_close(gradients(packed[real]), gradients(padded[real]), atol=1e-3, rtol=1e-3)

# %% [markdown]
# ### What 25,000 + 25,000 tokens look like
#
# What is a batch of the paper? We measured it on a slice of WMT's training data: 9,999 pairs of European Parliament,
# web and news text, with a vocabulary of 32,000 tokens learned from the slice. Suppose that each of the paper's eight
# GPUs takes an eighth, 3,125 tokens a side.

# %% tags=["row-H5"]
wmt = read_result("results/wmt_slice.json")
step, one_gpu = wmt["records"]
rows = [len(source) for source, _ in one_gpu["first_eight"]]
n_english, n_german = wmt["tokens"]
print(f"{wmt['words'][0]:.1f} words per English sentence, "
      f"{n_english:.1f} English and {n_german:.1f} German tokens")
print(f"eight batches of 3,125 tokens a side: {sum(rows)} pairs, "
      f"{min(rows)} to {max(rows)} for each GPU")
print(f"waste {one_gpu['waste']:.2f} grouped by length, "
      f"{one_gpu['waste_in_random_order']:.2f} in random order")
for sides_of_batch in one_gpu["first_eight"]:
    assert all(len(lengths) * max(lengths) <= 25_000 / 8
               for lengths in sides_of_batch)
assert (wmt["pairs"] == 9_999 == sum(one_gpu["sentences"])
        and step["max_tokens"] == 25_000)

# %% tags=["hide-input"] mystnb={"image": {"alt": "Eight panels, GPU 1 to GPU 8. Each has a rectangle of source tokens on the left and one of target tokens on the right. They have 49 to 84 rows; the sources end in a ragged edge of grey padding, the targets in a straight one. On GPU 6 and GPU 7 most of the source is padding, and on GPU 8 about half. Batches of long sentences are wide and low, those of short ones narrow and tall."}, "figure": {"caption": "One step on eight GPUs: the first eight batches of at most 3,125 tokens a side. Left in each: source, right: target. Blue: real tokens. Grey: padding.", "name": "fig-batch-wmt"}}
figure, axes = plt.subplots(2, 4, figsize=(7, 3.4), layout="constrained", sharex=True, sharey=True)
for gpu, (ax, both) in enumerate(zip(axes.flat, one_gpu["first_eight"]), 1):
    start = 0
    for lengths_of_rows in map(torch.tensor, both):
        longest = int(lengths_of_rows.max())
        rectangle = (torch.arange(longest) < lengths_of_rows[:, None]).float()
        ax.imshow(rectangle, cmap=ListedColormap(["#d0d0d0", PALETTE[0]]), aspect="auto", vmin=0, vmax=1,
                  extent=(start, start + longest, len(rectangle), 0), interpolation="nearest")
        start += longest + 4
    ax.set_title(f"GPU {gpu}: {len(rectangle)} pairs", fontsize=9)
ax.set(xlim=(0, 106), ylim=(86, 0), xticks=[], yticks=[0, 40, 80])
for ax in axes[:, 0]:
    ax.set_ylabel("sentence")
plt.show()

# %% [markdown]
# 25,000 target tokens would be some 950 sentences of the mean length. Eight batches of the slice hold 656 on average,
# these 508: the longer side decides how many rows fit, and padding takes its part. Our pairs are sorted by target, then
# by source. GPUs 5 to 8 show where the list goes on to the next target length: there the longest and the
# shortest sources end up in one rectangle. With 4.5 million pairs such borders are rare.

# %% [markdown]
# ## The corpora, and whom to credit
#
# A **corpus** is a collection of text; for translation it is *parallel*, a list of pairs. The paper uses two, of a
# workshop's shared task in 2014 {cite}`bojar2014findings`:
#
# | | English-German | English-French |
# |---|---|---|
# | sentence pairs, as the paper quotes them | "about 4.5 million" | "36M" |
# | vocabulary | byte-pair encoding, "about 37000 tokens", shared | word-pieces, 32000 |
# | a batch | approximately 25000 source tokens and 25000 target tokens | the same |
# | test set (section 6.1) | newstest2014 | newstest2014 |
#
# The package keeps a **registry** of corpora: the source of the text, whom to credit, each split's size, and a
# fingerprint of the files, so that a damaged download is refused. A translation belongs to its author, so read the card
# before you train or give a model away.

# %%
for line in corpus.card("wmt14-en-de").splitlines():
    print(textwrap.fill(line, 76, subsequent_indent=13 * " "))

# %% [markdown]
# By the card of the data set, English-German has 4,508,785 pairs, "about 4.5 million". The English-French collection of that name has 40.8 million,
# 4.8 million more than the paper's; which 36 million it used is unknown.

# %% tags=["hide-cell", "row-X4"]
german_pairs, french_pairs = corpus.get("wmt14-en-de").pairs, corpus.get("wmt14-en-fr").pairs
assert german_pairs["train"] == 4_508_785 and round(french_pairs["train"] / 1e6, 1) == 40.8
assert round((french_pairs["train"] - 36e6) / 1e6, 1) == 4.8
assert german_pairs["test"] == french_pairs["test"] == 3003  # newstest2014
assert all(corpus.get(name).licence for name in corpus.names())
with tempfile.TemporaryDirectory() as directory:
    for language in ("en", "de"):
        Path(directory, f"train.{language}").write_text("Hello.\n")
    try:
        corpus.load("multi30k-en-de", "train", directory)
    except ConfigError as error:
        print(str(error).replace(directory, "DIRECTORY")[:60])
    else:
        raise AssertionError("the damaged file was accepted")

# %% [markdown]
# ## Splits go by group
#
# A model learns from the **training** split, choices are made on the **validation** split, and the **test** split gives
# the score, once. The score is meant to predict how the model does on unseen text, so the training split must lack the
# test sentences, also in disguise. Tatoeba has many translations of one sentence, each a pair, and versions that differ
# in a full stop. So we count two sentences as one if they are equal after `fold`:

# %%
show(fold)

# %% [markdown]
# Two pairs are in one **group** if they share a sentence on either side, and so on through chains of pairs. The package
# keeps each group in one split, which a hash of its text decides, the same on every machine. We compare that with a
# random split.

# %%
def share_seen(train, test):
    seen = [{fold(pair[side]) for pair in train} for side in (0, 1)]
    return sum(fold(source) in seen[0] or fold(target) in seen[1]
               for source, target in test) / len(test)

everything = [pair for split in splits.values() for pair in split]
mixed = random.Random(2).sample(everything, len(everything))
by_chance = share_seen(mixed[2000:], mixed[:1000])
by_group = share_seen(splits["train"], splits["test"])
print("test pairs with a sentence of the training split: "
      f"{by_chance:.1%} at random, {by_group:.1%} by group")
assert by_chance > 0.05 and by_group == 0

# %% [markdown]
# In a random split one test pair in twelve has a sentence that the model has read in training, so the score partly
# measures memorization. We have not measured by how much it flatters.
#
# ## What people type
#
# A corpus of careful sentences has few numbers, rare names, capitals, e-mail addresses or slips of the pen, and whoever
# tries a translator types those first. A number cannot be learned, it has to be copied, and what copies is attention over
# the source. With `augment=True` many of an epoch's pairs are changed, anew each time, by rules whose answer is known:
#
# - **On both sides**: numbers and names give way to others; so do number words, for digits. New names are made of letters
#   that follow each other in the corpus's names; some are acronyms, codes and addresses. Two pairs are joined, one of them
#   perhaps as speech; both sides get quotation marks, brackets or an emoji.
# - **On the source side alone**: words in capitals, small letters, no full stop, two letters swapped, one doubled or left out.
# - **Beside the pairs**, when the book's model was trained: single words that translate each other, found by how often
#   they meet (Dice's coefficient). This rule has left the package since, so that no dictionary stands beside the pairs.
#
# The rules know no language: names are the words that both sides share and never write small, number words those that
# stand where the other side has digits. What needs no learning is settled by the tokenizer. `as_typed=True` makes every
# digit a token, so that 1984 is copied digit by digit, and takes ‘ ’ \` ´ for one apostrophe, „ “ « » for one quotation mark.
# Two further rules belong to `for_visitors(translator)`, which wraps a translator for people who type: it reads a line in
# capitals as a sentence in small letters, and returns a line without a letter unchanged.
#
# :::{dropdown} Where this is
# `annotated_transformer/data/`: `tokenizer.py`, `batching.py`, `corpus.py`, `parallel_text.py`, with tests of the same
# names in `tests/data/`; packing is `annotated_transformer/fast/packing.py`. On the command line,
# `annotated-transformer prepare tatoeba-en-de` fetches, verifies and prints the card.
# :::

# %% [markdown]
# ## Exercises
#
# One is above, {ref}`data-ex-shift`. `check("5.1-pair", ...)` and `check("5.1-merge", ...)` judge your own versions of the
# two functions of byte-pair encoding.

# %% [markdown] tags=["exercise"]
# ```{exercise} Predict the shapes
# :label: data-ex-shapes
#
# Three pairs have 4, 7 and 2 source ids, and 5, 3 and 6 target ids. What are the shapes of the batch's three arrays,
# and what is `n_tokens`? Which share of the source array is padding?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# Both sides get one token more.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} data-ex-shapes
# :class: dropdown
#
# Source (3, 8), both targets (3, 7), and $n\_tokens = 6 + 4 + 7 = 17$. Of the 24 places of the source,
# $5 + 8 + 3 = 16$ are taken; a third is padding.
# ```

# %% tags=["hide-cell", "solution"]
batch = make_batch([([9] * s, [9] * t) for s, t in ((4, 5), (7, 3), (2, 6))])
assert batch.source.shape == (3, 8)
assert batch.target_in.shape == batch.target_out.shape == (3, 7)
assert batch.n_tokens == 17
assert (batch.source == 0).sum() == 8

# %% [markdown] tags=["exercise"]
# ```{exercise} The tie
# :label: data-ex-ties
#
# Run an eighth round of the merge loop by hand. Which pairs are tied? Which one does your
# `most_frequent_pair` take, and which one SentencePiece?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# Train `toy` (in the folded cell below the merge trees) with room for eight merges.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} data-ex-ties
# :class: dropdown
#
# The four pairs that are left in *newest* occur six times each: `▁ n`, `n e`, `e we` and `we st`. Ours takes `e we`, the
# smallest in string order. SentencePiece takes `ne`: the shorter merged symbol first. A model knows the ids of one of
# them, so the tokenizer is stored in the checkpoint.
# ```

# %% tags=["hide-cell", "solution"]
counter = pair_counts(joined)
tied = sorted(pair for pair, n in counter.items() if n == max(counter.values()))
eighth = Tokenizer.train([word for word, n in counts.items() for _ in range(n)],
                         vocab_size=toy.vocab_size + 1)
print(tied, "ours:", most_frequent_pair(joined), "theirs:", eighth.pieces([267]))
assert eighth.pieces([267])[0] == min(("".join(pair) for pair in tied),
                                      key=lambda symbol: (len(symbol), symbol))

# %% [markdown] tags=["exercise"]
# ```{exercise} A leak that fold does not see
# :label: data-ex-leak
#
# `split_by_group` finds sentences that are equal up to case and punctuation. Write two pairs that leak all the same,
# and say how you would measure such leaks.
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# Change one name.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} data-ex-leak
# :class: dropdown
#
# *Anna sees the cow.* and *Vera sees the cow.* are two groups, yet the translation of one is nearly that of the other.
# One measure: for each test sentence, the largest share of its word triples in one training sentence.
# ```

# %% tags=["hide-cell", "solution"]
def triples(text):
    words = text.rstrip(".").split()
    return set(zip(words, words[1:], words[2:]))

anna, vera = "Anna sees the cow.", "Vera sees the cow."
two_groups = split_by_group([(anna, "Anna sieht die Kuh."), (vera, "Vera sieht die Kuh.")], n_held_out=1)
assert fold(anna) != fold(vera) and {len(split) for split in two_groups.values()} == {0, 1}
assert len(triples(anna) & triples(vera)) / len(triples(anna)) == 0.5

# %% [markdown] tags=["exercise"]
# ```{exercise} How often did the paper's model read a sentence?
# :label: data-ex-epochs
#
# The base model takes 100,000 steps of about 25,000 target tokens. *Assume* 30 tokens per sentence (the slice above has
# 26) and no padding. How many times does it see each of the 4.5 million German pairs, and the 36 million French ones?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# Tokens seen in all, divided by tokens in the corpus.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} data-ex-epochs
# :class: dropdown
#
# $100{,}000 \cdot 25{,}000 = 2.5 \cdot 10^9$ tokens. The German corpus has, under the assumption,
# $1.35 \cdot 10^8$: some 19 epochs. The French one has $1.08 \cdot 10^9$: a little more than two.
# ```

# %% tags=["hide-cell", "solution"]
seen = 100_000 * 25_000
assert round(seen / (4.5e6 * 30)) == 19
assert round(seen / (36e6 * 30), 1) == 2.3
assert round(wmt["tokens"][1]) == 26 and round(25_000 / wmt["tokens"][1], -1) == 950

# %% [markdown] tags=["exercise"]
# ```{exercise} Change the budget of tokens
# :label: data-ex-budget
#
# Measure the waste of `token_batches` for `max_tokens` of 200, 1,000, 3,000 and 10,000. Why does it grow? Would you
# expect much of it on the paper's 4.5 million pairs at 25,000?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# How many sentences of one length are there, and how many fit into a batch?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} data-ex-budget
# :class: dropdown
#
# A larger batch has to reach further along the sorted list, into other lengths. On the slice of 9,999 pairs batches of
# 25,000 waste 37 percent, those of 3,125 tokens 17. Millions of pairs fill many batches of every usual length, so we
# expect little.
# ```

# %% tags=["hide-cell", "solution"]
shares = [waste(token_batches(ids, size)) for size in (200, 1000, 3000, 10_000)]
print(*(f"{share:.3f}" for share in shares))
assert shares[-1] > shares[1] > 0 and shares[-1] > 2 * shares[1]
assert round(step["waste"], 2) == 0.37 and round(one_gpu["waste"], 2) == 0.17

# %% [markdown]
# ## What to remember
#
# - BPE merges the most frequent pair again and again (equation {eq}`data-bpe`); encoding replays the merges.
# - Our tokenizer gives every text back in Unicode's normal form NFKC: spaces are part of the pieces, and rare
#   characters become bytes.
# - One vocabulary, learned from the training split, serves both languages. Its size trades length for parameters.
# - The decoder reads bos $y_1 \ldots y_n$ and must predict $y_1 \ldots y_n$ eos (equation {eq}`data-shift`). The masks
#   follow from the arrays.
# - We fill batches by tokens and group them by length: a batch of the paper is several hundred pairs.
# - What must be copied is replaced on both sides of a pair; noise goes on the source side alone.
# - Know your corpus (source, licence, fingerprint), and split it by group: near-duplicates can flatter the score.
