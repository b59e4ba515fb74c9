# %% [markdown]
# # 1 Introduction: one sentence, from text to text
#
# This chapter follows one sentence through a whole Transformer: from text to tokens, vectors, probabilities, a loss and
# an update of the weights, and then, once the weights are good, to a translation and its score. If you have read
# [The Transformer in one hour](0_one_hour.ipynb), you know the ideas; here we watch the values, with their types and
# shapes. Each later chapter opens one of the boxes that we pass.
#
# ## 1.1 A translation
#
# The book comes with a small trained model, in the folder `model`, and we give it three sentences to translate:

# %%
from annotated_transformer import Translator

translator = Translator.from_checkpoint("model")
english = ["The children are playing in the garden.",
           "Tom sold his car because it was old.", "It's raining."]
for sentence, translation in zip(english, translator.translate(english)):
    print(f"{sentence:40} {translation}")
print(f"{sum(w.numel() for w in translator.model.parameters()):,} weights")

# %% tags=["hide-cell"]
import json
import math
import tempfile
from pathlib import Path

import torch
from matplotlib import pyplot as plt
from torch.nn import functional as F
from torch.testing import assert_close

from lab.display import PALETTE, use_style
from annotated_transformer.looking.record import plot_attention, record_attention

use_style()
assert translator.translate(["The children are playing in the garden."]) == ["Die Kinder spielen im Garten."]

# %% [markdown]
# It takes a second or two on one CPU core. The model is tiny: the paper's base model {cite}`vaswani2017attention` has
# 65 million weights. But the parts are the same, and so is the way of a sentence through them.
#
# ## 1.2 What the paper set out to change
#
# A translator reads one sequence and writes another. In 2017 the established systems for this were **recurrent**: one
# network goes from word to word and carries a state along {cite}`sutskever2014sequence,cho2014learning`,
#
# $$ h_t = f(h_{t-1}, x_t). $$
#
# The state at word $t$ has to wait for the state at word $t - 1$, so a sentence of $n$ words takes $n$ steps, however
# many arithmetic units the machine has. This is the complaint of the paper's introduction. **Convolutional** systems
# {cite}`gehring2017convolutional` compute all positions at once, but each layer sees only a few neighbours, and
# distant words meet only after several layers.
#
# **Attention** existed as an addition to a recurrent network {cite}`bahdanau2015neural`: for each output word, a
# weighted mean over all input words, with weights that depend on their content. The paper keeps this part and drops
# the network to which it was added. In the words of its abstract, the Transformer is
#
# > based solely on attention mechanisms, dispensing with recurrence and convolutions entirely.

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two drawings of five words. Left, recurrent: five boxes in a row, each with an arrow from its word below and from the box before it, numbered step 1 to step 5. Right, attention: five boxes, each with a line from every one of the five words, all labelled step 1."}, "figure": {"caption": "A recurrent layer goes from word to word; a layer of attention joins every word to every other in one step.", "name": "fig-intro-steps"}}
words = ["My", "sister", "has", "bought", "it"]
figure, axes = plt.subplots(1, 2, figsize=(6.4, 2.3), layout="constrained")
centre = {"ha": "center", "va": "center"}
for ax, title in zip(axes, ("recurrent: five steps, one after the other", "attention: all in one step")):
    for i, word in enumerate(words):
        ax.text(i, 0, word, fontsize=10, **centre)
        step = i + 1 if ax is axes[0] else 1
        box = {"boxstyle": "round,pad=0.35", "facecolor": "#dceaf5", "edgecolor": PALETTE[0]}
        ax.text(i, 1, f"step {step}", fontsize=8.5, bbox=box, **centre)
        for j in [i] if ax is axes[0] else range(5):
            ax.plot([j, i], [0.16, 0.78], color="0.25" if i == j else "0.7", linewidth=1, zorder=0)
        if i and ax is axes[0]:
            ax.annotate("", (i - 0.33, 1), (i - 0.67, 1), arrowprops={"arrowstyle": "->", "color": PALETTE[1]})
    ax.set(xlim=(-0.5, 4.5), ylim=(-0.25, 1.3), xticks=[], yticks=[], title=title, frame_on=False)
plt.show()

# %% [markdown]
# Now any two positions are one step apart, and a whole layer is computed at once. The price is that $n$ words need
# $n^2$ weights, and that a mean blurs what it averages. The paper answers the blur with several *heads*
# ([3.2](3_2_attention.ipynb)), and [chapter 4](4_why_self_attention.ipynb) counts steps and operations exactly.
# The gain is in training, where all target positions are computed together. When it *writes*, a Transformer still goes
# word by word, because each word depends on those before it.
#
# ## 1.3 The model in one picture
#
# Here is our drawing of the paper's Figure 1.
#
# ![Figure 1 of the paper, redrawn. On the left the encoder: source embedding plus positions, then N layers of self-attention and feed-forward network, each with add and norm. On the right the decoder: target embedding plus positions, then N layers of causal self-attention, attention over the encoder's output, and feed-forward network, each with add and norm; above it the linear projection and the softmax.](figures/architecture.svg)
#
# We read the drawing from below. On the left, the **encoder** reads the source sentence and gives one vector per token;
# together they are the **memory**. On the right, the **decoder** reads the target as far as it is written, looks into
# the memory, and predicts the next token. In between, *attention* moves information from one position to another, and
# the *feed-forward* network works on each position alone.
#
# What does it look like when a decoder looks into the memory? We record the weights of our trained model while it reads
# a sentence and its translation, and take the mean over the heads of the last layer. For comparison we draw the same
# for a model of the same size with random weights.

# %% tags=["hide-cell"]
from annotated_transformer import Transformer, make_batch

torch.manual_seed(0)
pieces, encode = translator.tokenizer.pieces, translator.tokenizer.encode
followed = ("My sister has bought a green umbrella.", "Meine Schwester hat einen grünen Schirm gekauft.")
one = make_batch([tuple(map(encode, followed))])
german, columns = pieces(one.target_out[0].tolist()), pieces(one.source[0].tolist())

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two heat maps with the tokens of a German sentence as rows and those of its English source as columns. Left, trained: each German word has one or two bright cells, Schwester at sister, gr at gre, Sch and irm at umbrella. Right, random weights: all cells have much the same colour."}, "figure": {"caption": "From which English token does the decoder fetch when it predicts a German one? Mean over the heads of the last layer.", "name": "fig-intro-attention"}}
figure, axes = plt.subplots(1, 2, figsize=(6.4, 3.7), sharey=True, layout="constrained")
fetched = []
for ax, net in zip(axes, (translator.model, Transformer(translator.model.config).eval())):
    with torch.no_grad(), record_attention(net) as weights:
        net(one.source, one.target_in)
    fetched.append(list(weights.values())[-1][0].mean(dim=0))
    plot_attention(fetched[-1], german, columns, ax=ax).images[0].set_clim(0, 1)
    ax.set(title="random weights" if len(fetched) == 2 else "trained", xlabel="English", ylabel="")
figure.colorbar(axes[0].images[0], ax=axes, label="attention weight", shrink=0.8)
plt.show()

# %% [markdown]
# Several rows of the trained model read like a dictionary: the decoder looks at *sister* when it predicts *Schwester*,
# and mostly at *bought*, the fourth word, when it predicts *gekauft*, the last. It was never told which words belong
# together. Chapter [7](7_attention_visualizations.ipynb) asks how far one may trust such pictures.

# %% tags=["hide-cell"]
sister = columns.index("▁sister")
assert fetched[0][german.index("▁Schwester")].argmax() == sister
assert fetched[0].max(dim=-1).values.mean() > 1.5 * fetched[1].max(dim=-1).values.mean()

# %% [markdown]
# ## 1.4 The way of a sentence
#
# The map below has the stations of this chapter. Solid boxes are used both in training and in translation; the dashed
# loop on the left is training, the dotted one on the right is writing a translation. In the shapes, $B$ is the number
# of sentences in a batch, $S$ and $T$ are the lengths of source and target in tokens, $D = d_{\text{model}}$ is the
# width of the vectors and $V$ the size of the vocabulary ([notation](notation.md)).

# %% tags=["hide-input"]
# name: column, row, words, and who uses it
stations = {
    "pair": (1, 0, "a pair of sentences", "both"), "ids": (1, 1, "token ids", "both"),
    "batch": (1, 2, "a batch", "both"), "encoder": (0.4, 3.3, "encoder", "both"),
    "decoder": (1.6, 3.3, "decoder", "both"), "logits": (1.6, 4.3, "logits (B, T, V)", "both"),
    "adam": (-0.7, 3.3, "Adam step", "learn"), "loss": (-0.7, 4.3, "loss, in nats", "learn"),
    "search": (2.8, 4.3, "search", "write"), "text": (2.8, 5.2, "translation", "write"),
    "bleu": (1.6, 5.2, "BLEU", "write"),
}

# %% tags=["hide-input"]
# the corners of each arrow, its words and where their middle is
paths = [
    ([(1, 0), (1, 1)], "", 0, 0), ([(1, 1), (1, 2)], "", 0, 0),
    ([(1, 2), (1, 2.45), (0.4, 2.45), (0.4, 3.3)], "source\n(B, S)", 0.14, 2.75),
    ([(1, 2), (1, 2.45), (1.6, 2.45), (1.6, 3.3)], "target_in\n(B, T)", 1.92, 2.75),
    ([(0.4, 3.3), (1.6, 3.3)], "memory\n(B, S, D)", 1, 3.3), ([(1.6, 3.3), (1.6, 4.3)], "(B, T, D)", 1.88, 3.8),
    ([(1.6, 4.3), (-0.7, 4.3)], "", 0, 0),
    ([(1, 2), (-1.35, 2), (-1.35, 4.3), (-0.7, 4.3)], "target_out (B, T)", -0.6, 1.88),
]
paths += [([(-0.7, 4.3), (-0.7, 3.3)], "", 0, 0), ([(-0.7, 3.3), (0.4, 3.3)], "new\nweights", -0.16, 3.3),
          ([(1.6, 4.3), (2.8, 4.3)], "", 0, 0), ([(2.8, 4.3), (2.8, 3.3), (1.6, 3.3)], "the next\ntoken", 2.4, 3.3),
          ([(2.8, 4.3), (2.8, 5.2)], "", 0, 0), ([(2.8, 5.2), (1.6, 5.2)], "", 0, 0)]

# %% tags=["hide-input"] mystnb={"image": {"alt": "A map. From top to bottom: a pair of sentences, token ids, a batch. The batch's source goes to the encoder, whose memory goes to the decoder, which also takes target_in; the decoder's vectors become logits. Dashed on the left: logits and target_out give the loss, the loss an Adam step, and the step new weights, drawn to the encoder. Dotted on the right: logits go to the search, which hands the next token back to the decoder; its result is a translation, scored by BLEU."}, "figure": {"caption": "The stations of this chapter. Dashed boxes, left: training; dotted boxes, right: translating; all others: always.", "name": "fig-intro-map"}}
looks = {"both": ("black", "-"), "learn": (PALETTE[0], "--"), "write": (PALETTE[1], ":")}
figure, ax = plt.subplots(figsize=(6.4, 4.6), layout="constrained")
boxes = {(x, y): ax.text(x, -y, text, fontsize=9, ha="center", va="center", zorder=3, bbox={
    "boxstyle": "round,pad=0.45", "facecolor": "white", "edgecolor": looks[who][0], "linestyle": looks[who][1]})
    for x, y, text, who in stations.values()}
for corners, label, x, y in paths:
    ax.plot(*zip(*[(a, -b) for a, b in corners[:-1]]), color="0.3", linewidth=1, zorder=1)
    (a, b), (c, d) = corners[-2:]
    ax.annotate("", (c, -d), (a, -b), arrowprops={"arrowstyle": "->", "color": "0.3", "patchB": boxes.get((c, d)),
                                                  "shrinkA": 0, "patchA": boxes.get((a, b))})
    ax.text(x, -y, label, fontsize=8, style="italic", color="0.25", ha="center", va="center", linespacing=1.6)
ax.set(xlim=(-1.45, 3.3), ylim=(-5.5, 0.3), frame_on=False, xticks=[], yticks=[])
plt.show()

# %% [markdown]
# ### Text to tokens and ids
#
# The model above learned from thousands of sentences. To watch every step, we now train a model of our own, on 42
# pairs of sentences that were written for this chapter, and we follow the third of them:

# %%
from annotated_transformer import Tokenizer

lines = Path("first_pairs.tsv").read_text(encoding="utf-8").splitlines()
pairs = [tuple(line.split("\t")) for line in lines]
pairs, unseen_pairs = pairs[:42], pairs[42:]
tokenizer = Tokenizer.train([s for pair in pairs for s in pair], vocab_size=600)
ids = [(tokenizer.encode(source), tokenizer.encode(target)) for source, target in pairs]
source_text, target_text = pairs[2]
for text, tokens in zip(pairs[2], ids[2]):
    print(text, tokenizer.pieces(tokens), tokens, sep="\n   ")

# %% [markdown]
# A vocabulary of whole words would be helpless before a new word, and one of single letters would make long sequences.
# The paper goes between: it learns a **vocabulary** of frequent pieces from the text, for English and German by
# byte-pair encoding {cite}`sennrich2016neural`, some 37,000 of them for both languages together. For our 42 pairs 600
# are plenty. `▁` stands for a space, and an **id** is a token's row in the vocabulary. Decoding the ids gives back
# every character ([5.1](5_1_data_and_batching.ipynb)).

# %% tags=["hide-cell"]
assert len(pairs) == 42 and len(unseen_pairs) == 5 and not set(unseen_pairs) & set(pairs)
for pair, encoded in zip(pairs, ids):
    assert tuple(map(tokenizer.decode, encoded)) == pair

def words_of(pairs):
    return {word.strip(".?") for source, _ in pairs for word in source.split()}

assert words_of(unseen_pairs) <= words_of(pairs)
assert tokenizer.decode(tokenizer.encode("Ein 🦔 grüßt: «привет»!")) == "Ein 🦔 grüßt: «привет»!"

# %% [markdown]
# ### Ids to a batch
#
# A GPU wants rectangular tensors, and sentences differ in length. `make_batch` puts sentences side by side and fills
# the shorter ones up with **padding**, a token that the model is taught to ignore. Here are our sentence and the short
# *I am tired.*:

# %%
batch = make_batch([ids[2], ids[0]])
print({name: tuple(getattr(batch, name).shape) for name in batch._fields[:3]})

# %% tags=["hide-input"] mystnb={"image": {"alt": "Three grids of tokens with two rows each. Source: the sentence's tokens and an end token; the second row is short and filled up with padding. target_in begins with a start token; target_out has the same tokens one place further left and ends with the end token."}, "figure": {"caption": "A batch of two sentences. `target_in` and `target_out` are the same sentence, shifted by one place.", "name": "fig-intro-batch"}}
colours = ("0.85", "#f6d7b8", "#f6d7b8")  # padding, bos, eos
figure, axes = plt.subplots(3, 1, figsize=(6.4, 3.2), layout="constrained")
for ax, name in zip(axes, ("source", "target_in", "target_out")):
    rows = getattr(batch, name).tolist()
    shown = [[piece.replace("<pad>", "·") for piece in tokenizer.pieces(row)] for row in rows]
    left = 0
    for column in range(len(rows[0])):
        width = max(2.2, *(len(row[column]) for row in shown)) + 0.6
        for y, (row, words) in enumerate(zip(rows, shown)):
            colour = colours[row[column]] if row[column] < 3 else "#dceaf5"
            ax.barh(y, width - 0.15, 0.9, left, color=colour)
            ax.text(left + width / 2, y, words[column], ha="center", va="center", fontsize=8)
        left += width
    ax.set(ylim=(1.5, -0.5), xticks=[], yticks=[], frame_on=False, title=f"{name} {(2, len(rows[0]))}")
plt.show()

# %% [markdown]
# The tokens `<s>` and `</s>` mark the beginning and the end of a sentence (*bos* and *eos*), and `·` is padding. The
# target is there twice: `target_in`, with `<s>` in front, is what the paper calls "shifted right", and `target_out` is
# the target itself, with `</s>` at its end. The decoder reads `target_in` and is to predict `target_out`: at each
# position it has read everything *before* the token that we ask for.
#
# ## 1.5 Through the model
#
# We make a model with two layers per stack and vectors of $D = 128$ numbers (the paper's base model has six layers and
# 512), with random weights for now. Its preset `tiny` draws some of them smaller than the authors' code does, and `base`
# and `big` draw them as it does ([3.1](3_1_stacks.ipynb)). `Transformer.forward` is the whole way from ids to scores:

# %%
from annotated_transformer import ModelConfig
from lab.display import show

config = ModelConfig.tiny(vocab_size=600, N=2, d_ff=256)
torch.manual_seed(1)
model = Transformer(config).eval()
show(Transformer.forward)

# %%
mask = model.source_mask(batch.source)
vectors = model.embed(batch.source)
memory = model.encode(batch.source)
decoded = model.decode(batch.target_in, memory, mask)
logits = model.logits(decoded)
for name, tensor in (("ids", batch.source), ("vectors", vectors), ("memory", memory),
                     ("decoded", decoded), ("logits", logits)):
    print(f"{name:8} {tuple(tensor.shape)}")
print(f"{sum(w.numel() for w in model.parameters()):,} weights")

# %% [markdown]
# 1. From ids to vectors: each id picks its row from a matrix $E$, times $\sqrt{d_{\text{model}}}$
#    ([3.4](3_4_embeddings_and_softmax.ipynb)). To this we add a vector that depends on the position alone
#    ([3.5](3_5_positional_encoding.ipynb)).
# 2. From vectors to memory: in the encoder every token looks at all others, layer after layer
#    ([3.2](3_2_attention.ipynb), [3.1](3_1_stacks.ipynb)). A *mask* hides the padding, so *I am tired.* gets the same
#    memory in our batch as alone.
# 3. From memory to decoded vectors: the decoder computes all target positions at once, and a second, *causal* mask
#    keeps it from looking ahead. If we replace the end of the target by nonsense, the vectors before it stay the same.
# 4. From vectors to logits: the same matrix $E$ compares each vector with every token, and $x E^\top$ gives $V$ scores,
#    the **logits**. Their softmax is the distribution of the next token.
#
# The folded cell checks each of these four statements.

# %% tags=["hide-cell"]
from annotated_transformer import positional_encoding

E = model.embedding.weight
assert_close(vectors, E[batch.source] * 128**0.5 + positional_encoding(batch.source.size(1), 128))
alone = make_batch([ids[0]]).source
assert_close(memory[1:, :alone.size(1)], model.encode(alone))
nonsense = batch.target_in.clone()
nonsense[:, 6:] = 99
after = model.decode(nonsense, memory, mask)
assert_close(decoded[:, :6], after[:, :6])
assert not torch.allclose(decoded[:, 6:], after[:, 6:])
assert_close(logits, decoded @ E.T)
assert_close(logits, model(batch.source, batch.target_in))

# %% [markdown]
# A translation model gives, at each position, a distribution of the next token. The probability of a whole sentence
# $y$, given the source
# $x$, is a product over its tokens, the last of which is eos:
#
# $$ P(y \mid x) = \prod_{t=1}^{T} P(y_t \mid y_1, \dots, y_{t-1}, x) $$ (factorisation)
#
# Thanks to the causal mask, one pass gives us all $T$ factors. A translator feeds one token after the other instead,
# through `step`, and the two ways agree:

# %%
y_in, y_out = batch.target_in[0], batch.target_out[0]
p = logits.softmax(dim=-1)
factors = p[0, range(len(y_out)), y_out]  # all from one pass
with torch.no_grad():
    state = model.start(batch.source[:1])
    steps = [model.step(token.view(1, 1), state) for token in y_in]
slowly = torch.cat(steps, dim=1).softmax(dim=-1)[0, range(len(y_out)), y_out]
print(f"one pass: {factors.log().mean():.4f} nats per token,",
      f"step by step: {slowly.log().mean():.4f}, a guess: {-math.log(600):.4f}")
assert_close(factors, slowly)

# %% [markdown]
# A model that gave every token the probability 1/600 would score $-\ln(1/600) = 6.40$ **nats** per token (a nat is the
# unit of the natural logarithm). Our untrained model does worse, because it bets on the token that it has read last:
# its output vectors still resemble its input vectors, and $E$ is what both are compared with.

# %% tags=["hide-cell"]
real = batch.target_out != 0
assert (p.argmax(dim=-1) == batch.target_in)[real].float().mean() > 0.5

# %% [markdown]
# ## 1.6 The model learns
#
# The **loss** of a batch is the sum of $-\ln P$ over its real target tokens, and training makes it small. The paper
# asks for slightly less than certainty: the right token should get 0.9, and the remaining 0.1 is spread over the
# vocabulary (*label smoothing*, [5.4](5_4_regularization.ipynb)). The function returns both: the `loss` with smoothing,
# which we minimise, and the `nll` without (the *negative log-likelihood*, $-\ln P$), which we report.

# %%
from annotated_transformer import label_smoothed_cross_entropy

loss, nll = label_smoothed_cross_entropy(logits, batch.target_out, eps_ls=0.1, pad_id=0)
print(f"loss {loss / batch.n_tokens:.4f}, nll {nll / batch.n_tokens:.4f} nats per token")

# %% tags=["hide-cell"]
by_torch = F.cross_entropy(logits.flatten(0, 1), batch.target_out.flatten(),
                           label_smoothing=0.1, ignore_index=0, reduction="sum")
assert_close(loss, by_torch)
assert_close(nll, -p[real, batch.target_out[real]].log().sum())

# %% [markdown]
# From the loss comes a gradient, and from the gradient Adam makes an update of every weight
# ([5.3](5_3_optimizer.ipynb)). Its size is set by a **learning rate** that rises for `warmup_steps` updates and then
# falls. `train` repeats this: batch, loss, gradient, rate, update. We train for 160 updates, with a warm-up of 40
# instead of the paper's 4,000 and, because so short a warm-up would make the rate too high, a fifth of the formula's
# rate. Every 20 updates `train` also measures the nll of five sentences that it never trains on, all made of words from
# the 42.

# %%
from annotated_transformer import TrainConfig, train

settings = TrainConfig(
    train_steps=160, max_tokens=512, warmup_steps=40, lr_factor=0.2,
    log_every=1, validate_every=20, checkpoint_every=10)
runs = tempfile.TemporaryDirectory()
out = Path(runs.name) / "forty-two"
train(config, settings, tokenizer, pairs, unseen_pairs, out, progress=False)
print(*sorted(path.name for path in out.iterdir()))

# %% mystnb={"image": {"alt": "Left: nats per token over 160 updates. The loss on the 42 sentences falls from about 9 to a dashed line at 0.96 by update 100, and their nll to near 0; the nll of the five unseen sentences falls to about 2 and stays there. Right: the learning rate rises in a straight line to its peak at update 40 and then falls ever more slowly."}, "figure": {"caption": "Training on 42 pairs. Left: the loss on them comes close to its floor, while five unseen sentences stay improbable. Right: the learning rate.", "name": "fig-intro-training"}}
log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
steps = [record for record in log if "loss" in record]
valid = [record for record in log if "valid_nll" in record]
right, wrong = 0.9 + 0.1 / 600, 0.1 / 600
floor = -right * math.log(right) - 599 * wrong * math.log(wrong)
figure, axes = plt.subplots(1, 2, figsize=(6.4, 2.7), layout="constrained")
axes[0].plot([r["step"] for r in steps], [r["loss"] for r in steps], label="loss, the 42")
axes[0].plot([r["step"] for r in steps], [r["nll"] for r in steps], "-.", color=PALETTE[3], label="nll, the 42")
axes[0].plot([r["step"] for r in valid], [r["valid_nll"] for r in valid], "s-", color=PALETTE[1], markersize=4, label="nll, five unseen")
axes[0].axhline(floor, color="black", linestyle="--", linewidth=1, label=f"smallest loss, {floor:.2f}")
axes[0].set(xlabel="update", ylabel="nats per token", ylim=(0, None))
axes[0].legend(frameon=False)
axes[1].plot([r["step"] for r in steps], [r["rate"] for r in steps], color=PALETTE[2])
axes[1].set(xlabel="update", ylabel="learning rate", ylim=(0, None))
plt.show()

# %% [markdown]
# The loss has a floor above zero. It is smallest when the model predicts exactly the smoothed target, and the entropy
# of that target is 0.96 nats ({ref}`exercise-floor`). On the 42 sentences our model comes close to it. The nll of the
# five others stays near 2 nats per token, and we come back to them.
#
# The last updates jump around the minimum, because each batch pulls its own way. The paper translates with the *mean*
# of the last **checkpoints**, the weights saved at regular intervals: five for its base models, twenty for the big
# ones.

# %%
from annotated_transformer import average_checkpoints, load_model

averaged = average_checkpoints(out, last=5)
model, tokenizer = load_model(averaged)
print("the mean of", len(list((out / "checkpoints").iterdir())), "checkpoints is in", averaged.name)

# %% tags=["hide-cell"]
from annotated_transformer.checkpoint import directory as checkpoint
from annotated_transformer.checkpoint import weights
from annotated_transformer import noam_learning_rate

five = [weights.load_tensors(path)[0] for path in checkpoint.step_checkpoints(out)]
assert len(five) == 5
assert_close(model.embedding.weight.detach(), sum(each["embedding.weight"] for each in five) / 5)
for record in steps:
    assert record["rate"] == noam_learning_rate(record["step"], 128, warmup_steps=40, factor=0.2)
assert floor < steps[-1]["loss"] < floor + 0.3

# %% [markdown]
# ## 1.7 The model translates
#
# From here on the German sentence is unknown. We run the encoder once. The decoder gets bos and gives a distribution;
# we take the most probable token, feed it back, and so on until the token is eos. This is called **greedy search**:

# %% tags=["nbval-rtol-0.1"]
BOS, EOS = 1, 2
token, greedy = torch.tensor([[BOS]]), []
with torch.no_grad():
    state = model.start(batch.source[:1])
    while token.item() != EOS and len(greedy) < 40:
        p_V = model.step(token, state)[0, 0].softmax(dim=-1)
        token = p_V.argmax().view(1, 1)
        greedy.append(token.item())
        print(f"{tokenizer.pieces(greedy[-1:])[0]} {p_V.max():.2f}", end="  ")

# %% [markdown]
# The model is more confident than the 0.9 that label smoothing asks for. A likely reason is that it learned with
# dropout on and writes with it off.
#
# The best first token may begin a worse sentence. **Beam search** therefore keeps the four best beginnings alive. Every
# further token lowers a sentence's probability, so it ranks finished sentences by $\log P(y \mid x) / lp(|y|)$, in
# which $lp(n) = ((5 + n) / 6)^{0.6}$ takes back part of that ([6.1](6_1_translation.ipynb)).

# %% tags=["nbval-ignore-output"]
from annotated_transformer import beam_search

[hypotheses] = beam_search(model, batch.source[:1], beam_size=4, alpha=0.6, n_best=4)
for hypothesis in hypotheses:
    print(f"{hypothesis.score:6.2f}  {tokenizer.decode(hypothesis.tokens)}")
assert tokenizer.decode(hypotheses[0].tokens) == target_text

# %% tags=["hide-cell"]
from annotated_transformer import greedy_search

assert greedy_search(model, batch.source[:1]) == [greedy[:-1]] == [ids[2][1]]
for tokens, score, log_p in hypotheses:
    assert math.isclose(score, log_p / ((5 + len(tokens) + 1) / 6) ** 0.6)
assert [each.score for each in hypotheses] == sorted((each.score for each in hypotheses), reverse=True)

# %% [markdown]
# `Translator` is the whole way in one object, from a directory to text. We translate all 42 sentences and the five
# unseen ones, and compare them with the references by **BLEU** {cite}`papineni2002bleu`: the share of their words,
# pairs, triples and fours of words that occur in the reference, with a penalty for brevity. The reference itself gets
# 100.

# %% tags=["nbval-ignore-output"]
from annotated_transformer import bleu

ours, scores = Translator.from_checkpoint(averaged), []
for name, group in (("learned", pairs), ("unseen", unseen_pairs)):
    sources, references = map(list, zip(*group))
    translations = ours.translate(sources)
    scores.append(bleu(translations, references).score)
    print(f"{name}: BLEU {scores[-1]:.0f}")
for source, translation in zip(sources, translations):
    print(f"   {source:40} {translation}")
assert scores[1] < 75 < 95 < scores[0]

# %% [markdown]
# Our model has learned 42 sentences by heart, and answers a new sentence with the nearest one that it has memorised.
# The falling loss gave us no warning; the curve of the sentences that we kept apart did. To learn to translate, a model
# needs more sentences than it can memorise: the model of section 1.1 learned from 168,444 pairs, and even the small one
# of [6.1](6_1_translation.ipynb) has 36,524.
#
# ## 1.8 Two things that look like formalities
#
# First, the positions. *The cat sees the bird* and *The bird sees the cat* have the same tokens. Attention treats its
# input as a multiset, so if we leave out the positions, the two sentences become one.

# %%
cat, bird = make_batch([ids[15]]), make_batch([ids[16]])
for kind in ("sinusoidal", "none"):
    torch.manual_seed(1)
    each = Transformer(config.replace(positions=kind)).eval()
    change = each(cat.source, cat.target_in) - each(bird.source, cat.target_in)
    print(f"positions={kind}: the logits differ by up to {change.abs().max():.4f}")

# %% tags=["hide-cell"]
assert sorted(cat.source[0].tolist()) == sorted(bird.source[0].tolist())
assert change.abs().max() < 1e-5

# %% [markdown]
# Second, the shift. Suppose we forget it, and let the decoder read at each position the very token that it is to
# predict.

# %% tags=["nbval-ignore-output"]
from annotated_transformer.training.run import TrainingRun

everything = make_batch(ids)
careless = everything._replace(target_in=everything.target_out)  # the mistake
run = TrainingRun(config, settings)
for _ in range(60):
    _, nll, n_tokens = run.step([careless])
found = greedy_search(run.model.eval(), everything.source)
n_right = sum(tokens == target for tokens, (_, target) in zip(found, ids))
print(f"nll after 60 updates: {nll / n_tokens:.2f} nats per token (the right model: {steps[59]['nll']:.2f})")
print(f"translations that are right: {n_right} of 42")
assert nll / n_tokens < 0.3 < 1 < steps[59]["nll"] and n_right <= 2

# %% [markdown]
# The loss is splendid, but the model has learned to copy its input, and with no answer to copy it writes nonsense. When
# your own model does the same, look at the shift and at the causal mask first ([common
# mistakes](common_mistakes.ipynb)).

# %% tags=["hide-cell"]
runs.cleanup()

# %% [markdown]
# ```{admonition} Where this is
# :class: dropdown
#
# In `annotated_transformer`: tokens and batches in `text/`, the model in `model/`, loss, Adam and `TrainingRun` in
# `training/`, search, `Translator` and BLEU in `translation/`, checkpoints in `checkpoint.py`. The names of the types
# are in the [reference](api.md).
#
# The [map of the paper](https://github.com/annotated-transformer/annotated-transformer/blob/main/book/paper_map.md) lists the tests of each.
# ```

# %% [markdown]
# ## Exercises
#
# ```{exercise} Weights, by hand
# :label: exercise-weights
#
# Derive the number of weights that 1.5 prints from $V = 600$, $N = 2$, $d_{\text{model}} = 128$, $d_{\text{ff}} = 256$.
# The attention projections have no bias, the feed-forward layers have one each, and every sub-layer has a LayerNorm
# with two vectors.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
# `for name, w in model.named_parameters(): print(name, tuple(w.shape))`. The embedding is used three times and stored
# once.
# ```
#
# ```{solution} exercise-weights
# :class: dropdown
# One attention has $4 \cdot 128^2 = 65{,}536$ weights, one feed-forward network $2 \cdot 128 \cdot 256 + 256 + 128 =
# 65{,}920$, and one LayerNorm $256$. An encoder layer has one attention, one feed-forward and two norms, $131{,}968$; a
# decoder layer has two, one and three, $197{,}760$. Together with $E$ we get $600 \cdot 128 + 2 \cdot (131{,}968 +
# 197{,}760) = 736{,}256$.
# ```
#
# ```{exercise} The floor
# :label: exercise-floor
#
# Derive the floor of the loss, 0.96 nats, and the nll that goes with it. What are they for the paper's vocabulary of
# 37,000 tokens? Can a model have a smaller nll, or a smaller loss?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
# Cross-entropy $-\sum_v q_v \ln p_v$ is smallest at $p = q$, where it is the entropy of $q$. Write down $q$.
# ```
#
# ```{solution} exercise-floor
# :class: dropdown
# $q$ is $0.9 + 0.1/V$ at the right token and $0.1/V$ at the other $V - 1$. With $V = 600$ its entropy is $0.9632$ nats
# and the nll $-\ln 0.90017 = 0.1052$; with $V = 37{,}000$ they are $1.3769$ and $0.1054$. A smaller loss is impossible.
# A smaller nll is possible, at the price of a larger loss: a model that gives the right token 0.99 is *punished*. That
# is why the paper says that label smoothing hurts perplexity.
# ```
#
# ```{exercise} Leave out the mask
# :label: exercise-mask
#
# Encode the batch with a mask that is True everywhere, `model.encode(batch.source, torch.ones_like(mask))`. Which of
# the two memories changes? Does the loss of a *training* run tell you about this mistake?
# ```
#
# ```{solution} exercise-mask
# :class: dropdown
# The shorter one's changes, because *I am tired.* now looks at padding. Training would still succeed, since the model
# learns to live with it; but a translation would depend on what it is batched with. The loss hides this, and the
# comparison of the memory with that of the sentence alone, in 1.5, shows it.
# ```

# %% tags=["hide-cell"]
assert sum(w.numel() for w in Transformer(config).parameters()) == 736_256
for V, entropy, nats in ((600, 0.9632, 0.1052), (37_000, 1.3769, 0.1054)):
    right, wrong = 0.9 + 0.1 / V, 0.1 / V
    assert round(-right * math.log(right) - (V - 1) * wrong * math.log(wrong), 4) == entropy
    assert round(-math.log(right), 4) == nats
seen = model.encode(batch.source), model.encode(batch.source, torch.ones_like(mask))
assert_close(seen[0][0], seen[1][0])
assert not torch.allclose(seen[0][1, :alone.size(1)], seen[1][1, :alone.size(1)])
