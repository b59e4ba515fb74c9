# %% [markdown]
# # 2 Background: where the parts come from
#
# *Section 2 of the paper {cite}`vaswani2017attention`, paragraph by paragraph, and what came before it.*
#
# The Transformer was assembled from existing parts. In this chapter we see where each of them comes from, what was still
# missing in June 2017, and what the paper claims to do first. We also train, in seconds, a model with the weakness that
# brought attention into translation.

# %% tags=["remove-cell"]
import math

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from annotated_transformer import attention_weights
from lab.display import PALETTE, use_style

use_style()

# %% [markdown]
# ## How the parts came together
#
# A **recurrent network** reads a sequence one item at a time and carries a vector, its state, from one item to the next
# {cite}`elman1990finding`. In training, the gradient has to go back through all those steps, and tends to vanish on
# the way. The **LSTM** {cite}`hochreiter1997long` gives the state a path that is only added to and gated, so that
# gradients survive longer; the **GRU** {cite}`cho2014learning` does it with fewer gates, about as well
# {cite}`chung2014empirical`.
#
# In 2014 came the **encoder-decoder**: one recurrent network reads the source and ends in a state, and a second starts
# from that state and writes the target {cite}`sutskever2014sequence,cho2014learning`. But everything that the decoder
# learns about the source has to pass through *one vector of fixed size*.
#
# **Attention** {cite}`bahdanau2015neural` removed that bottleneck. The encoder's states at all positions are kept, and
# at each word the decoder takes a weighted mean of them, with weights from a small network that compares its own state
# with each. {cite:t}`luong2015effective` simplified the comparison, among other forms to a dot product. Google's
# production system of 2016, **GNMT**, was of this kind, with 8 layers of LSTM on each side, residual connections, word
# pieces, and the length penalty that the Transformer's search took over {cite}`wu2016google`.
#
# A recurrent network has to finish word 9 before it can start on word 10. Three **convolutional** systems compute all
# positions at once. The **Extended Neural GPU** {cite}`kaiser2016active` applies convolutions to a whole sequence of
# states again and again; **ByteNet** {cite}`kalchbrenner2016neural` stacks dilated convolutions; **ConvS2S**
# {cite}`gehring2017convolutional` stacks ordinary, gated ones, and attends to the encoder from every decoder layer. An
# ensemble of ConvS2S models is the best of the earlier systems in the paper's Table 2, in both languages.
#
# **End-to-end memory networks** {cite}`sukhbaatar2015end` answer questions about a text by attending to its sentences
# several times over.
#
# Wherever these systems have attention, it goes from one sequence to another. **Self-attention**, or intra-attention,
# relates the positions of *one* sequence to each other. It appeared in machine reading, inside an LSTM
# {cite}`cheng2016long`; in textual entailment, in a small model of feed-forward layers with hardly any word order
# {cite}`parikh2016decomposable`; in sentence embeddings {cite}`lin2017structured` and in summarization
# {cite}`paulus2018deep`, there on top of LSTMs.
#
# In June 2017 the **Transformer** put self-attention into every layer of encoder and decoder, with attention from the
# decoder to the encoder, and dropped every other way of moving information between positions.

# %% tags=["hide-input"]
timeline = [  # year with a fraction for the month, name, lane
    (1990.2, "Elman: simple recurrent network", 0), (1997.9, "LSTM", 0),
    (2014.4, "encoder-decoder, GRU", 0), (2014.72, "Sutskever et al.: LSTM to LSTM", 0),
    (2014.67, "Bahdanau et al.: attention", 1), (2015.2, "end-to-end memory networks", 1),
    (2015.6, "Luong et al.: dot product", 1), (2016.7, "GNMT: LSTMs with attention", 1),
    (2016.05, "Cheng et al.: machine reading", 2), (2016.4, "Parikh et al.: entailment", 2),
    (2016.82, "Extended Neural GPU", 3), (2016.83, "ByteNet", 3), (2017.2, "Lin et al.: sentence embedding", 2),
    (2017.35, "ConvS2S", 3), (2017.36, "Paulus et al.: summarization", 2), (2017.45, "Transformer", 4),
]
lanes = ("recurrent", "attention between sequences", "self-attention", "convolutional", "the paper")

# %% tags=["hide-input"] mystnb={"image": {"alt": "A timeline, read from top to bottom, of sixteen works in five columns. 1990 Elman's simple recurrent network and 1997 LSTM; 2014 encoder-decoder with GRU, attention by Bahdanau, LSTM to LSTM by Sutskever; 2015 end-to-end memory networks and Luong's dot product; 2016 Cheng on machine reading, Parikh on entailment, GNMT, Extended Neural GPU, ByteNet; 2017 Lin's sentence embedding, ConvS2S, Paulus on summarization, and last the Transformer."}, "figure": {"caption": "What came before, in order of first publication; the five columns are five lines of work.", "name": "fig-bg-timeline"}}
figure, ax = plt.subplots(figsize=(6.4, 4.6), layout="constrained")
for row, (_, name, lane) in enumerate(sorted(timeline)):
    ax.plot([0, lane], [row, row], color="0.85", linewidth=0.8, zorder=0)
    ax.plot(lane, row, "osD^*"[lane], color=PALETTE[lane], markersize=9 if lane == 4 else 6)
    ax.text(lane + 0.12, row, name, va="center", fontsize=8)
ax.set_yticks(range(len(timeline)), labels=[f"{int(year)}" for year, *_ in sorted(timeline)])
ax.set_xticks(range(5), labels=[lane.replace(" ", "\n") for lane in lanes])
ax.set(xlim=(-0.3, 5.1), ylim=(len(timeline) - 0.4, -0.6))
ax.tick_params(length=0)
ax.xaxis.tick_top()
ax.spines[["left", "bottom"]].set_visible(False)
assert sorted(timeline)[-1][1] == "Transformer"
plt.show()

# %% [markdown]
# ## What section 2 says
#
# The first of its four paragraphs says that the Extended Neural GPU, ByteNet and ConvS2S had the same aim, fewer
# sequential steps, but that their number of operations between two positions grows with the distance: "linearly
# for ConvS2S and logarithmically for ByteNet". In the Transformer it is constant, at the price that a mean over
# positions blurs, "an effect we counteract with Multi-Head Attention". (For why distance matters, the paper cites
# {cite:t}`hochreiter2001gradient`.) We can draw what "between two positions" means:

# %% tags=["hide-input"]
paths = {  # (position, layer) along the way
    "recurrent: 8 steps": [(0, 0), *((i, 1) for i in range(9))],
    "ConvS2S: 4 layers": [(0, 0), (2, 1), (4, 2), (6, 3), (8, 4)],
    "ByteNet: 3 layers": [(0, 0), (0, 1), (0, 2), (8, 3)], "attention: 1 layer": [(0, 0), (8, 1)],
}

# %% tags=["hide-input"] mystnb={"image": {"alt": "Four drawings of nine positions and the layers above them, each with the path from the first position to the last in colour. Recurrent: eight steps along one row. Kernels side by side: four layers, two places each. Kernels whose gaps double: three layers. Attention: one layer, directly."}, "figure": {"caption": "The path from the first of nine positions (left) to the last (right), through layers (upwards): a recurrent network, kernels of width 3 that look back (as in ConvS2S), the same with gaps that double from layer to layer (as in ByteNet), and attention.", "name": "fig-bg-distance"}}
figure, axes = plt.subplots(2, 2, figsize=(6.4, 3.4), sharex=True, sharey=True, layout="constrained")
for ax, (title, path), colour in zip(axes.flat, paths.items(), PALETTE):
    for layer in range(max(y for _, y in path) + 1):
        ax.plot(range(9), [layer] * 9, "o", color="0.8", markersize=6, zorder=0)
    ax.plot(*zip(*path), "o-", color=colour, markersize=6)
    ax.set(title=title, xticks=range(0, 9, 4), yticks=range(5), ylim=(-0.5, 4.4))
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.tick_params(length=0)
for ax in axes[1]:
    ax.set_xlabel("position")
for ax in axes[:, 0]:
    ax.set_ylabel("layer")
plt.show()

# %% [markdown]
# We take kernels that look back here; those of ConvS2S's encoder are centred, and reach half as far to each side. With gaps
# of 1, 2, 4, ... three layers span 15 places; gaps that *triple*, 1, 3, 9, would give the paper's $\log_k(n)$ exactly.
# [Chapter 4](4_why_self_attention.ipynb) counts path lengths, and the cost of each layer.
#
# The second paragraph defines self-attention and names the four earlier uses that we have met. The third says that
# memory networks repeat attention instead of going along the sequence, and the fourth makes the claim:
#
# > To the best of our knowledge, however, the Transformer is the first transduction model relying entirely on
# > self-attention to compute representations of its input and output without using sequence-aligned RNNs or convolution.
#
# Let us read it closely. *Transduction* means from sequence to sequence: {cite:t}`parikh2016decomposable`, who used
# attention without recurrence a year earlier (one of them is an author of this paper too), classify pairs of sentences.
# *Sequence-aligned* leaves room for memory networks, and *self*-attention excludes models whose attention joins only
# source and target. So attention and self-attention were known; what is new is that they suffice.
#
# Eight authors are marked as equal contributors in random order: Ashish Vaswani, Noam Shazeer, Niki Parmar, Jakob
# Uszkoreit, Llion Jones, Aidan N. Gomez, Łukasz Kaiser and Illia Polosukhin, of Google Brain, Google Research and the
# University of Toronto. By the footnote, Uszkoreit proposed to replace recurrent networks by self-attention, and
# Shazeer scaled dot-product attention, multi-head attention and the position representation without parameters. By the
# paper's Table 2 its larger model is 2.04 BLEU above the best earlier ensemble for English-German, and 0.51 for
# English-French ([6.1](6_1_results.ipynb)).

# %% [markdown]
# ## One vector for a whole sentence
#
# How bad is it to squeeze a sentence through one vector? A recurrent encoder reads the $n$ source symbols
# $x_1, \ldots, x_n$ by $h_j = f(h_{j-1}, x_j)$, and ends in $h_n$. The decoder has states $s_i$ of its own, and starts
# from $s_0 = h_n$. With attention, each of its outputs also gets a mean of *all* the encoder's states, here with dot
# products for scores:
#
# $$
# c_i = \sum_{j=1}^{n} \alpha_{ij} h_j, \qquad \alpha_{ij} = \frac{\exp(s_i \cdot h_j)}{\sum_{j'} \exp(s_i \cdot
# h_{j'})}
# $$ (bg-context)
#
# Without $c_i$, all that the decoder ever sees of the source is $h_n$, however long the source is. With it, the decoder
# asks the source a question at every output, and its own state is the question. This is where query, key and value come
# from; the Transformer makes each of them by a matrix of its own ([3.2](3_2_attention.ipynb)).
#
# | | asks | is compared | is handed over |
# |---|---|---|---|
# | {cite:t}`bahdanau2015neural` | state $s_{i-1}$ | states $h_j$ | states $h_j$ |
# | here | state $s_i$ | states $h_j$ | states $h_j$ |
# | Transformer | query $q_i = s_i W^Q$ | key $k_j = h_j W^K$ | value $v_j = h_j W^V$ |

# %% tags=["hide-input"]
def add_context(ax):
    for j, weight in enumerate((0.1, 0.2, 0.6, 0.1)):
        ax.plot([j, 5.7], [0.35, 1.6], color=PALETTE[1], linewidth=8 * weight, zorder=0)
    ax.text(5.7, 1.6, "$c_2$", ha="center", va="center", bbox={"boxstyle": "round", "facecolor": "white"})
    ax.annotate("", (5.7, 1.35), (5.7, 0.35), arrowprops={"arrowstyle": "->"})
    ax.annotate("output 2", (6.05, 1.6), (7.05, 1.6), va="center", fontsize=9, arrowprops={"arrowstyle": "<-"})

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two drawings of an encoder of four states in a row, h1 to h4, and a decoder of four states, s1 to s4. Left: a single thick arrow leads from h4 to s1. Right: in addition, an arrow leads from s2 up to its context c2, where lines of different thickness from all four encoder states meet, and from there one to an output."}, "figure": {"caption": "Left: everything passes through one vector. Right: each output, here the second, also gets a weighted mean of all encoder states.", "name": "fig-bg-drawing"}}
figure, axes = plt.subplots(1, 2, figsize=(6.4, 2.5), layout="constrained")
for ax, title in zip(axes, ("one vector", "with attention")):
    places = (0, 1, 2, 3, 4.7, 5.7, 6.7, 7.7)
    for i, x in enumerate(places):
        box = {"boxstyle": "circle", "facecolor": "#dceaf5" if i < 4 else "#f6d7b8", "edgecolor": "0.3"}
        ax.text(x, 0, f"$h_{i + 1}$" if i < 4 else f"$s_{i - 3}$", ha="center", va="center", fontsize=10, bbox=box)
        if i < 7:
            arrow = {"arrowstyle": "->", "linewidth": 3 if i == 3 else 1}
            ax.annotate("", (places[i + 1] - 0.3, 0), (x + 0.3, 0), arrowprops=arrow)
    if ax is axes[1]:
        add_context(ax)
    else:
        ax.annotate("all that passes", (3.85, 0.15), (3.85, 1.2), ha="center", arrowprops={"arrowstyle": "->"})
    ax.set(xlim=(-0.6, 8.4), ylim=(-0.6, 2), xticks=[], yticks=[], title=title, frame_on=False)
plt.show()

# %% [markdown]
# We write both models as one class, of GRUs. As in {cite:t}`luong2015effective`, $c_i$ joins the state $s_i$ at the
# output and does not enter the next state; the output layer that reads both has twice the weights. The mean is the
# attention of [3.2](3_2_attention.ipynb) without its scale.

# %%
class EncoderDecoder(nn.Module):
    def __init__(self, n_symbols, width, attends):
        super().__init__()
        self.attends, self.embedding = attends, nn.Embedding(n_symbols, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.output = nn.Linear(2 * width if attends else width, n_symbols)
    def forward(self, source, target_in):
        memory, last = self.encoder(self.embedding(source))
        states, _ = self.decoder(self.embedding(target_in), last)
        alpha = (states @ memory.mT).softmax(dim=-1)
        if self.attends:
            states = torch.cat([states, alpha @ memory], dim=-1)
        return self.output(states), alpha
print(EncoderDecoder(n_symbols=12, width=32, attends=True))

# %% tags=["remove-cell"]
torch.manual_seed(0)
s, h = torch.randn(3, 4), torch.randn(5, 4)
by_hand = torch.zeros(3, 4)
for i in range(3):
    exponentials = [math.exp(s[i] @ h[j]) for j in range(5)]
    for j in range(5):
        by_hand[i] += exponentials[j] / sum(exponentials) * h[j]
assert_close(by_hand, (s @ h.mT).softmax(dim=-1) @ h)
assert_close(by_hand, attention_weights(s * math.sqrt(4), h) @ h)  # the package's divides by sqrt(d_k)

# %% [markdown]
# The task is to write a row of symbols in reverse. There are ten different symbols, and we train for 300 steps on rows
# of 4, 8 and 16 symbols. The width is 32 in all cases, so the same vector has to hold more and more. We count accuracy
# with the right earlier symbols given to the decoder, as in training. (The folded cell has the data and the loop.)

# %% tags=["hide-cell"]
def rows_of_symbols(n_rows, length):
    source = torch.randint(2, 12, (n_rows, length))
    target_out = source.flip(1)
    return source, F.pad(target_out[:, :-1], (1, 0), value=1), target_out

# %% tags=["hide-cell"]
def trained(length, attends, n_steps=300):
    torch.manual_seed(0)
    model = EncoderDecoder(12, 32, attends)
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(n_steps):
        source, target_in, target_out = rows_of_symbols(32, length)
        logits, _ = model(source, target_in)
        adam.zero_grad()
        F.cross_entropy(logits.flatten(0, 1), target_out.flatten()).backward()
        adam.step()
    return model

# %% tags=["nbval-ignore-output"]
def accuracy_by_position(model, length):
    torch.manual_seed(1)
    source, target_in, target_out = rows_of_symbols(500, length)
    with torch.no_grad():
        logits, _ = model(source, target_in)
    return (logits.argmax(dim=-1) == target_out).float().mean(dim=0)

models = {(n, attends): trained(n, attends)
          for n in (4, 8, 16) for attends in (False, True)}
accuracy = {key: accuracy_by_position(model, key[0])
            for key, model in models.items()}
print("length  one vector  with attention")
for n in (4, 8, 16):
    without, with_it = accuracy[n, False].mean(), accuracy[n, True].mean()
    print(f"{n:6}  {without:10.2f}  {with_it:14.2f}")

# %% tags=["remove-cell"]
assert accuracy[4, False].mean() > 0.8
assert 0.35 < accuracy[16, False].mean() < 0.65 and 0.8 < accuracy[16, True].mean() < 0.95
assert accuracy[16, True].mean() > accuracy[16, False].mean() + 0.15

# %% [markdown]
# For four symbols one vector is enough. For sixteen, in this training time, it gets about half of the symbols right,
# and the model that may look back nearly nine in ten. A wider state or longer training would move the limit, but a
# vector of fixed size cannot hold a row of any length. Where are the mistakes, and where does our second model look?

# %% tags=["hide-cell"]
torch.manual_seed(2)
source, target_in, _ = rows_of_symbols(1, 16)
with torch.no_grad():
    alpha = models[16, True](source, target_in)[1][0]
assert_close(alpha.sum(dim=-1), torch.ones(16))
near = sum(alpha[i, max(0, 14 - i):17 - i].sum() for i in range(16)) / 16  # within one place of the mirror image
assert near > 0.5 > 2 * 3 / 16  # uniform weights would give 3/16

# %% tags=["hide-input"] mystnb={"image": {"alt": "Left: accuracy at each of 16 output positions. Both curves start high; the one for a single vector falls steeply and stays low in the later positions, the one with attention stays well above it. Right: heat map of attention weights, 16 output positions down, 16 source positions across; much of the weight lies along a line from the upper right to the lower left."}, "figure": {"caption": "Reversing 16 symbols. Left: accuracy by output position (dotted: a guess). Right: attention weights of the model that attends, for one row.", "name": "fig-bg-bottleneck"}}
figure, axes = plt.subplots(1, 2, figsize=(6.4, 2.9), layout="constrained")
for attends, dash, label in ((False, "o--", "one vector"), (True, "s-", "with attention")):
    axes[0].plot(range(1, 17), accuracy[16, attends], dash, markersize=3, label=label)
axes[0].axhline(0.1, color="black", linestyle=":", linewidth=1)
axes[0].set(xlabel="output position", ylabel="accuracy", ylim=(0, 1.05))
axes[0].legend(frameon=False, loc=(0.03, 0.14))
image = axes[1].imshow(alpha, vmin=0, extent=(0.5, 16.5, 16.5, 0.5))
axes[1].set(xlabel="source position", ylabel="output position", xticks=range(1, 17, 3), yticks=range(1, 17, 3))
figure.colorbar(image, ax=axes[1], label="attention weight")
plt.show()

# %% [markdown]
# With one vector the later symbols get hard: some two in five survive. In the weights on the right we see the reversal itself: for its first
# symbol the decoder looks at the end of the source, for its last at the beginning, often one place off.

# %% [markdown]
# ## What to remember
#
# - Attention was invented to remove the bottleneck of one vector between two recurrent networks.
# - Convolutional models removed the sequential steps, but keep distant positions several layers apart.
# - Self-attention was known; the paper claims the first *transduction* model that relies *entirely* on it.
#
# ```{admonition} Where this is
# :class: dropdown
#
# The recurrent networks are in this chapter alone; the package's attention is in `model/attention.py`.
# ```

# %% [markdown]
# ## Exercises

# %% [markdown] tags=["exercise"]
# ```{exercise} Fifty words
# :label: bg-ex-distance
#
# Two words stand at the ends of a 50-word sentence. How many layers of width 3 relate them if the kernels look back, without
# gaps and with gaps that triple from layer to layer? Which width would let *two* layers without gaps do it?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# A kernel of width $k$ reaches $k - 1$ places back. With gaps, $m$ layers span $k^m$ places.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} bg-ex-distance
# :class: dropdown
#
# $\lceil 49 / 2 \rceil = 25$ layers, and 4 with gaps (since $3^3 = 27 < 50 \le 81$). For two layers,
# $2 (k - 1) \ge 49$ gives $k = 26$.
# ```

# %% tags=["hide-cell", "solution"]
def layers_until_met(n, k=3, dilated=False):
    """Layers until the last of n positions has heard of the first."""
    heard, n_layers, gap = [True] + [False] * (n - 1), 0, 1
    while not heard[-1]:
        heard = [any(heard[i - j * gap] for j in range(k) if i >= j * gap) for i in range(n)]
        n_layers, gap = n_layers + 1, gap * k if dilated else 1
    return n_layers

assert (layers_until_met(50), layers_until_met(50, dilated=True)) == (25, 4)
assert layers_until_met(50, k=26) == 2 < layers_until_met(50, k=25)
assert (layers_until_met(9, k=2), layers_until_met(9)) == (8, 4)  # the drawing
assert sum(2 * 2**layer for layer in range(2)) < 8 <= sum(2 * 2**layer for layer in range(3))  # ByteNet's gaps double

# %% [markdown] tags=["exercise"]
# ```{exercise} Is the vector too small?
# :label: bg-ex-bits
#
# How many bits does it take to write down a row of 16 symbols, each one of ten? How many bits does a state of 32
# float32 numbers have? What does that say about the bottleneck?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} bg-ex-bits
# :class: dropdown
#
# $16 \log_2 10 = 53.2$ bits, against 1,024. The vector is large enough to *hold* the row. What fails is learning to
# write so much into it and to read it out again: the bottleneck is one of training more than of storage.
# ```

# %% tags=["hide-cell", "solution"]
assert round(16 * math.log2(10), 1) == 53.2 and 32 * 32 == 1024

# %% [markdown] tags=["exercise"]
# ```{exercise} First in what?
# :label: bg-ex-claim
#
# Each of these came before the Transformer. Which words of the paper's claim does each fail: GNMT, ByteNet, ConvS2S,
# the entailment model of Parikh et al., end-to-end memory networks?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} bg-ex-claim
# :class: dropdown
#
# GNMT has recurrence along the sequence, and its attention goes from target to source. ByteNet is a convolution.
# ConvS2S is one as well, with attention from target to source. Parikh et al. classify, so their task is not
# transduction. Memory networks attend from a question to a text, and answer with a single word or so.
# ```
