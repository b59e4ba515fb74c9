# %% [markdown]
# # 2 Background: the history in one page
#
# *Section 2 of the paper {cite}`vaswani2017attention`, paragraph by paragraph, and what came before it.*
#
# The Transformer was put together from parts that existed. When you have read this chapter you know where each of them
# comes from, what was still missing in June 2017, and what exactly the paper claims to be first in. You will also have
# seen, in a training run of seconds, the weakness that brought attention into translation.

# %%
import math

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from annotated_transformer import attention_weights
from annotated_transformer.looking.visualization import PALETTE, plot_attention, use_style

use_style()
torch.set_printoptions(precision=4, sci_mode=False)

# %% [markdown]
# ## The page
#
# **A state that is carried along.** A **recurrent** network reads a sequence one item at a time and keeps a vector, its
# state, from one item to the next {cite}`elman1990finding`. In training, the gradient has to go back through all those
# steps, and tends to vanish on the way. The **LSTM** {cite}`hochreiter1997long` gives the state a path that is only
# added to and gated, so that gradients survive longer; the **GRU** {cite}`cho2014learning` does it with fewer gates,
# about as well {cite}`chung2014empirical`.
#
# **Two networks for two sentences.** In 2014 came the **encoder-decoder**: one recurrent network reads the source and
# ends in a state, a second starts from that state and writes the target {cite}`sutskever2014sequence,cho2014learning`.
# It translates whole sentences without a dictionary or a rule. But everything the decoder learns of the source has to
# pass through *one vector of fixed size*.
#
# **Attention.** {cite:t}`bahdanau2015neural` removed that bottleneck. The encoder's states at all positions are kept,
# and at each word the decoder takes a weighted mean of them, with weights from a small network that compares its own
# state with each. {cite:t}`luong2015effective` simplified the comparison, among other forms to a dot product.
# Google's production system of 2016, **GNMT**, was of this kind, with 8 layers of LSTM on each side, residual
# connections, word pieces, and the length penalty that the Transformer's search took over {cite}`wu2016google`.
#
# **Without recurrence.** A recurrent network cannot start on word 10 before word 9 is done. Three lines of work looked
# for layers that compute all positions at once. The **Extended Neural GPU** {cite}`kaiser2016active` applies
# convolutions to a whole sequence of states again and again. **ByteNet** {cite}`kalchbrenner2016neural` stacks dilated
# convolutions, **ConvS2S** {cite}`gehring2017convolutional` ordinary ones with gates, and attention from every layer
# of its decoder to the encoder. Among the systems in the paper's Table 2 that came before it, an ensemble of ConvS2S
# models is the best in both languages.
#
# **Memory.** **End-to-end memory networks** {cite}`sukhbaatar2015end` answer questions about a text by attending to its
# sentences several times over. What recurs there is the attention, not a walk along the text.
#
# **A sentence attends to itself.** Until then attention went from one sequence to another. **Self-attention**, or
# intra-attention, relates the positions of *one* sequence to each other. It appeared in machine reading, inside an LSTM
# {cite}`cheng2016long`; in a small model for textual entailment, between feed-forward layers and with no recurrence at
# all, though also with hardly any word order {cite}`parikh2016decomposable`; in sentence embeddings
# {cite}`lin2017structured` and in summarization {cite}`paulus2018deep`, there on top of LSTMs.
#
# **June 2017.** The Transformer: self-attention in every layer of both encoder and decoder, attention from the decoder
# to the encoder, and nothing else to move information between positions.

# %% [markdown]
# **Picture.** The same in a line of time, by the year of first publication.

# %% tags=["hide-input"]
timeline = [  # year with a fraction for the month, name, lane
    (1990.2, "Elman: simple recurrent network", 0), (1997.9, "LSTM", 0),
    (2014.4, "encoder-decoder, GRU", 0), (2014.72, "Sutskever et al.: LSTM to LSTM", 0),
    (2014.67, "Bahdanau et al.: attention", 1), (2015.2, "end-to-end memory networks", 1),
    (2015.6, "Luong et al.: dot product", 1), (2016.7, "GNMT", 0),
    (2016.05, "Cheng et al.: machine reading", 2), (2016.4, "Parikh et al.: entailment", 2),
    (2016.82, "Extended Neural GPU", 3), (2016.83, "ByteNet", 3), (2017.2, "Lin et al.: sentence embedding", 2),
    (2017.35, "ConvS2S", 3), (2017.36, "Paulus et al.: summarization", 2), (2017.45, "Transformer", 4),
]
lanes = ("recurrent", "attention between sequences", "self-attention", "convolutional", "the paper")

# %% tags=["hide-input"] mystnb={"image": {"alt": "A timeline, read from top to bottom, of sixteen works in five colours. 1990 Elman's simple recurrent network and 1997 LSTM; 2014 encoder-decoder with GRU, attention by Bahdanau, LSTM to LSTM by Sutskever; 2015 end-to-end memory networks and Luong's dot product; 2016 Cheng on machine reading, Parikh on entailment, GNMT, Extended Neural GPU, ByteNet; 2017 Lin's sentence embedding, ConvS2S, Paulus on summarization, and last the Transformer."}, "figure": {"caption": "What came before. Rows are in order of first publication; the five columns are five lines of work.", "name": "fig-bg-timeline"}}
figure, ax = plt.subplots(figsize=(6.4, 4.6), layout="constrained")
marks = "osD^*"
for row, (_, name, lane) in enumerate(sorted(timeline)):
    ax.plot([0, lane], [row, row], color="0.85", linewidth=0.8, zorder=0)
    ax.plot(lane, row, marks[lane], color=PALETTE[lane], markersize=9 if lane == 4 else 6)
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
# ## Section 2, paragraph by paragraph
#
# Section 2 has four paragraphs. In our words:
#
# 1. **Fewer sequential steps** were the aim of the Extended Neural GPU, ByteNet and ConvS2S too, all of them
#    convolutional. But the number of operations that it takes to relate two positions grows with their distance:
#    in step with it for ConvS2S, with its logarithm for ByteNet. In the Transformer it is constant. The price is
#    that a mean over positions blurs, "an effect we counteract with Multi-Head Attention". (Why distance matters, the
#    paper takes from {cite:t}`hochreiter2001gradient`.)
# 2. **Self-attention** is defined, and four earlier uses are named: reading, summarization, entailment, sentence
#    representations.
# 3. **End-to-end memory networks** are based on attention that recurs, instead of recurrence along the sequence.
# 4. **The claim:** "To the best of our knowledge, however, the Transformer is the first transduction model relying
#    entirely on self-attention to compute representations of its input and output without using sequence-aligned
#    RNNs or convolution."
#
# Read the claim closely. *Transduction* means from sequence to sequence: {cite:t}`parikh2016decomposable`, who used
# attention without recurrence the year before (and one of whose authors is an author of this paper), classify pairs of
# sentences; they write none. *Sequence-aligned* leaves room for memory networks. And *self-*attention excludes models
# whose attention joins only source and target. So the novelty is not attention, and not even self-attention, but that
# neither recurrence nor convolution is needed besides. (The claim speaks of the representations of input and output.
# Between the two, the Transformer too attends from one sequence to the other.)
#
# **The first page.** Eight authors, marked as equal contributors in random order: Ashish Vaswani, Noam Shazeer, Niki
# Parmar, Jakob Uszkoreit, Llion Jones, Aidan N. Gomez, Łukasz Kaiser and Illia Polosukhin, of Google Brain, Google
# Research and the University of Toronto. A footnote says who did what; by it, Uszkoreit proposed to replace recurrent
# networks by self-attention, and Shazeer scaled dot-product attention, multi-head attention and the position
# representation without parameters. The abstract claims four things: better translations, more parallelism, less
# training time, and that the model serves another task, parsing. Two of its numbers can be held against the paper's own
# Table 2 ([6.1](6_1_results.ipynb)):

# %%
earlier_best = {"English-German": 26.36, "English-French": 41.29}  # ConvS2S, an ensemble of several models
transformer_big = {"English-German": 28.4, "English-French": 41.8}
for pair, score in transformer_big.items():
    gain = score - earlier_best[pair]
    print(f"{pair}: {score} BLEU, {gain:.2f} above the best earlier ensemble (the paper's numbers)")
assert 28.4 - 26.36 > 2  # "improving over the existing best results, including ensembles, by over 2 BLEU"

# %% [markdown]
# ## Break it: one vector for a whole sentence
#
# **Question.** How bad is it to squeeze a sentence through one vector?
#
# **Equation.** A recurrent encoder reads the $n$ source symbols $x_1, \ldots, x_n$ by $h_j = f(h_{j-1}, x_j)$, and
# ends in $h_n$. The decoder has states $s_i$ of its own, and starts from $s_0 = h_n$. With attention, it also gets at
# each step a mean of *all* the encoder's states, here with dot products for scores:
#
# $$
# c_i = \sum_{j=1}^{n} \alpha_{ij} h_j, \qquad \alpha_{ij} = \frac{\exp(s_i \cdot h_j)}{\sum_{j'} \exp(s_i \cdot
# h_{j'})}
# $$ (bg-context)
#
# Without $c_i$, all that the decoder ever sees of the source are the entries of $h_n$, however long the source is.
#
# **Code.** Both in one class, of GRUs. The mean is the attention of [3.2](3_2_attention.ipynb), without its scale.

# %%
class EncoderDecoder(nn.Module):
    def __init__(self, n_symbols, width, attends):
        super().__init__()
        self.embedding = nn.Embedding(n_symbols, width)
        self.encoder, self.decoder = (nn.GRU(width, width, batch_first=True) for _ in range(2))
        self.output = nn.Linear(2 * width if attends else width, n_symbols)
        self.attends, self.scale = attends, math.sqrt(width)

    def forward(self, source, target_in):
        memory, last = self.encoder(self.embedding(source))
        states, _ = self.decoder(self.embedding(target_in), last)
        if self.attends:
            context = attention_weights(states * self.scale, memory) @ memory
            states = torch.cat([states, context], dim=-1)
        return self.output(states)

# %% [markdown]
# **Check.** The context of one step, from equation {eq}`bg-context` with plain loops.

# %%
torch.manual_seed(0)
s, h = torch.randn(3, 4), torch.randn(5, 4)
by_hand = torch.zeros(3, 4)
for i in range(3):
    exponentials = [math.exp(s[i] @ h[j]) for j in range(5)]
    for j in range(5):
        by_hand[i] += exponentials[j] / sum(exponentials) * h[j]
assert_close(by_hand, attention_weights(s * math.sqrt(4), h) @ h)

# %% [markdown]
# The task: write a row of symbols in reverse. There are ten different symbols, 300 training steps, and rows of 4, 8
# and 16. The width is 32 in all cases: the same vector has to hold ever more. Accuracy is counted with the right
# earlier symbols given to the decoder, as in training.

# %%
def reversal(n_rows, length):
    source = torch.randint(2, 12, (n_rows, length))
    target_out = source.flip(1)
    return source, F.pad(target_out[:, :-1], (1, 0), value=1), target_out

# %%
def trained(length, attends, n_steps=300):
    torch.manual_seed(0)
    model = EncoderDecoder(12, 32, attends)
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(n_steps):
        source, target_in, target_out = reversal(32, length)
        loss = F.cross_entropy(model(source, target_in).flatten(0, 1), target_out.flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
    return model

# %% tags=["nbval-ignore-output"]
def accuracy_by_position(model, length):
    torch.manual_seed(1)
    source, target_in, target_out = reversal(500, length)
    with torch.no_grad():
        return (model(source, target_in).argmax(dim=-1) == target_out).float().mean(dim=0)

models = {(n, attends): trained(n, attends) for n in (4, 8, 16) for attends in (False, True)}
accuracy = {key: accuracy_by_position(model, key[0]) for key, model in models.items()}
print("length  one vector  with attention")
for n in (4, 8, 16):
    print(f"{n:6}  {accuracy[n, False].mean():10.2f}  {accuracy[n, True].mean():14.2f}")

# %%
assert accuracy[4, False].mean() > 0.8
assert accuracy[16, False].mean() < 0.7
assert accuracy[16, True].mean() > accuracy[16, False].mean() + 0.15

# %% [markdown]
# For four symbols one vector is enough. For sixteen it is not, in this training time; the model that may look back
# does better there. (This is about what is *learned* in 300 steps with a width of 32. A wider state or longer training
# would move the limit. It would not remove it: a vector of fixed size cannot hold a row of any length.)
#
# **Picture.** Where are the mistakes? Left, the share of right symbols at each place of the output. Right, the
# attention weights for one row. The reversal can be seen in them, though often one place off: for the first output
# symbol the decoder looks at the end of the source, for the last at its beginning. (One place after a symbol, the
# encoder's state still holds it.)

# %%
torch.manual_seed(2)
source, target_in, _ = reversal(1, 16)
model = models[16, True]
with torch.no_grad():
    memory, last = model.encoder(model.embedding(source))
    states, _ = model.decoder(model.embedding(target_in), last)
    alpha = attention_weights(states * model.scale, memory)[0]
assert_close(alpha.sum(dim=-1), torch.ones(16))
near = [alpha[i, max(0, 14 - i):17 - i].sum() for i in range(16)]  # within one place of the mirror image
assert sum(near) / 16 > 0.5

# %% mystnb={"image": {"alt": "Left: accuracy at each of 16 output positions. Both curves start high; the one for a single vector falls steeply and stays low in the later positions, the one with attention stays well above it. Right: heat map of attention weights, 16 output positions down, 16 source positions across; much of the weight lies along a line from the upper right to the lower left."}, "figure": {"caption": "Reversing 16 symbols. Left: accuracy by output position (dotted: a guess). Right: attention weights of the model that attends.", "name": "fig-bg-bottleneck"}}
figure, axes = plt.subplots(1, 2, figsize=(6.2, 2.9), layout="constrained")
for attends, dash, label in ((False, "o--", "one vector"), (True, "s-", "with attention")):
    axes[0].plot(range(1, 17), accuracy[16, attends], dash, markersize=3, label=label)
axes[0].axhline(0.1, color="black", linestyle=":", linewidth=1)
axes[0].set(xlabel="output position", ylabel="accuracy", ylim=(0, 1.05))
axes[0].legend(frameon=False, loc=(0.03, 0.14))
places = [str(i) for i in range(1, 17)]
plot_attention(alpha, places, places, ax=axes[1])
plt.show()

# %% [markdown]
# **Where.**
#
# - Code: none in the package, which has no recurrent network; `attention_weights` is in
#   `annotated_transformer/model/attention.py`.
# - Exercises: {ref}`bg-ex-bits`, {ref}`bg-ex-gates`, {ref}`bg-ex-copy`.

# %% [markdown]
# ## How many operations apart?
#
# **Question.** The first paragraph compares layers by the number of operations that it takes to relate two positions.
# Count them.
#
# **Equation.** Let $n$ positions lie between and including the two. A recurrent network passes its state on $n - 1$
# times. A convolution of width $k$ looks at $k$ places, here its own and the $k - 1$ before it, and so moves
# information by $k - 1$ places a layer; with gaps that grow by the factor $k$ from layer to layer, $m$ layers span
# $k^m$ places. Attention needs one layer.
#
# $$
# \underbrace{n - 1}_{\text{recurrent}} \qquad
# \underbrace{\left\lceil \frac{n - 1}{k - 1} \right\rceil}_{\text{ConvS2S}} \qquad
# \underbrace{\min \{ m : k^m \ge n \}}_{\text{ByteNet}} \qquad
# \underbrace{\;1\;}_{\text{attention}}
# $$ (bg-distance)
#
# (This takes ConvS2S and ByteNet for the idea that each stands for: kernels side by side, and kernels with gaps. The
# real systems have more details. And the *number* of operations is not their *cost*; that is [chapter
# 4](4_why_self_attention.ipynb).)
#
# **Check.** No formulas: mark the first position, and let each layer hand the mark on to every position that looks at
# a marked one.

# %%
def layers_until_met(n, k=3, dilated=False):
    """Layers until the last of n positions has heard of the first."""
    heard, n_layers, gap = [True] + [False] * (n - 1), 0, 1
    while not heard[-1]:
        heard = [any(heard[i - j * gap] for j in range(k) if i >= j * gap) for i in range(n)]
        n_layers, gap = n_layers + 1, gap * k if dilated else 1
    return n_layers

def by_formula(n, k=3):
    dilated = next(m for m in range(n) if k**m >= n)
    return n - 1, math.ceil((n - 1) / (k - 1)), dilated, 1

# %%
print("   n  recurrent  ConvS2S  ByteNet  attention")
for n in (2, 9, 10, 50, 81, 500):
    recurrent, contiguous, dilated, attention = by_formula(n)
    assert layers_until_met(n, k=2) == recurrent  # looks at itself and one place back
    assert layers_until_met(n) == contiguous
    assert layers_until_met(n, dilated=True) == dilated
    print(f"{n:4}  {recurrent:9}  {contiguous:7}  {dilated:7}  {attention:9}")

# %% mystnb={"image": {"alt": "Operations between two positions against their distance from 2 to 500, both axes logarithmic. Recurrent and ConvS2S rise along parallel straight lines, to 499 and 250. ByteNet climbs in steps to 6. Attention stays at 1."}, "figure": {"caption": "Equation {eq}`bg-distance` for kernels of width 3.", "name": "fig-bg-distance"}}
figure, ax = plt.subplots(figsize=(5, 2.8), layout="constrained")
lengths = range(2, 501)
counts = zip(*[by_formula(n) for n in lengths])
for count, name, dash in zip(counts, ("recurrent", "ConvS2S", "ByteNet", "attention"), ("-", "--", "-.", ":")):
    ax.plot(lengths, count, dash, label=name)
ax.set(xscale="log", yscale="log", xlabel="positions $n$", ylabel="operations")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# The [first chapter](1_introduction.ipynb) counted the same with PyTorch's own record of what waits for what.
#
# **Where.**
#
# - Exercises: {ref}`bg-ex-distance`, {ref}`bg-ex-waits`; on the claim, {ref}`bg-ex-claim`.

# %% [markdown]
# ## Exercises
#
# Each has a hint and a solution, both folded. Where the answer can be computed, a folded cell below computes it.
#
# ```{exercise} Fifty words
# :label: bg-ex-distance
#
# Two words stand at the ends of a sentence of 50. How many layers of width 3 relate them, contiguous and dilated? Which
# width would let *two* contiguous layers do it?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Equation {eq}`bg-distance`; for the last question solve $2 (k - 1) \ge 49$.
# ```
#
# ```{solution} bg-ex-distance
# :class: dropdown
#
# 25 and 4 (since $3^3 = 27 < 50 \le 81$). For two layers $k = 26$.
# ```

# %% tags=["hide-cell"]
assert by_formula(50)[1:3] == (25, 4)
assert layers_until_met(50, k=26) == 2 < layers_until_met(50, k=25)

# %% [markdown]
# ```{exercise} Is the vector too small?
# :label: bg-ex-bits
#
# How many bits does it take to write down a row of 16 symbols, each one of ten? How many bits has a state of 32 numbers
# in float32? What does that say about the bottleneck?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# $\log_2 10 = 3.32$.
# ```
#
# ```{solution} bg-ex-bits
# :class: dropdown
#
# 53.2 bits against 1,024. The vector is large enough to *hold* the row. What fails is learning to write so much into it
# and to read it out again: every symbol must survive all the steps after it, and must be told from all others. The
# bottleneck is one of training more than of storage.
# ```

# %% tags=["hide-cell"]
assert round(16 * math.log2(10), 1) == 53.2 and 32 * 32 == 1024

# %% [markdown]
# ```{exercise} Gates and parameters
# :label: bg-ex-gates
#
# A GRU has three maps, each with a $d \times d$ matrix for its input and another for its state; an LSTM has four.
# PyTorch gives each of these matrices a bias of its own. How many parameters has each network for $d = 32$? Compare
# with one attention layer of the Transformer at the same width.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Each map has $2 d^2 + 2 d$ numbers.
# ```
#
# ```{solution} bg-ex-gates
# :class: dropdown
#
# $3 \cdot (2 \cdot 32^2 + 2 \cdot 32) = 6{,}336$ and $4 \cdot (2 \cdot 32^2 + 2 \cdot 32) = 8{,}448$. Multi-head
# attention has $4 \cdot 32^2 = 4{,}096$, at any number of heads.
# ```

# %% tags=["hide-cell"]
from annotated_transformer import MultiHeadAttention

layers = nn.GRU(32, 32), nn.LSTM(32, 32), MultiHeadAttention(32, h=4)
assert [sum(w.numel() for w in layer.parameters()) for layer in layers] == [6336, 8448, 4096]

# %% [markdown]
# ```{exercise} Copy instead of reverse
# :label: bg-ex-copy
#
# {cite:t}`sutskever2014sequence` turned every source sentence round before the encoder read it, and translated better.
# Why could that help? Test it: train the model without attention to *copy* eight symbols, and compare with the
# reversal. At which output position do the two differ most?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# In the reversal the first symbol to write is the last one read. How many steps lie between the two in copying?
# ```
#
# ```{solution} bg-ex-copy
# :class: dropdown
#
# In the reversal the distance between a symbol and its copy is 1, 3, 5, ... steps; in copying it is 8 for each. The
# mean distance is the same, and in this run so is, nearly, the share of right symbols. They differ most at the two
# ends. The reversal gets its *first* symbol right nearly always, and copying does not; at the last symbol, 15 steps
# from its source in the reversal and 8 in copying, it is the other way round. In use, where it continues its own
# output, a decoder that begins well has something to go on from. Turning the source round makes translation, where
# word orders are similar, look like the reversal at its beginning; that this is why it helped is the authors' guess,
# and this small run fits it without proving it.
# ```

# %% tags=["hide-cell", "nbval-ignore-output"]
turn = reversal

def reversal(n_rows, length):  # `trained` and `accuracy_by_position` look it up by name
    source, target_in, target_out = turn(n_rows, length)
    return source.flip(1), target_in, target_out

copying = accuracy_by_position(trained(8, attends=False), 8)
reversal = turn
print("copying  ", copying)
print("reversing", accuracy[8, False])
assert copying[0] < accuracy[8, False][0] - 0.03
assert copying[-1] > accuracy[8, False][-1]
assert abs(copying.mean() - accuracy[8, False].mean()) < 0.15

# %% [markdown]
# ```{exercise} First in what?
# :label: bg-ex-claim
#
# Each of these came before the Transformer. Which words of the paper's claim does each fail: GNMT, ByteNet, ConvS2S,
# the entailment model of Parikh et al., end-to-end memory networks?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# The claim has three conditions: transduction; entirely self-attention; no sequence-aligned recurrence or convolution.
# ```
#
# ```{solution} bg-ex-claim
# :class: dropdown
#
# GNMT: recurrence along the sequence, and its attention is from target to source. ByteNet: convolution, and no
# attention. ConvS2S: convolution, with attention from target to source. Parikh et al.: no transduction, they classify.
# Memory networks: their attention is from a question to a text, not self-attention, and what they write is a single
# answer.
# ```
#
# ```{exercise} What waits for what
# :label: bg-ex-waits
#
# A training pair has 30 source and 25 target tokens. How many recurrent steps must follow one another to compute the
# loss with one layer of encoder and decoder, and how many in a Transformer of $N = 6$, counting layers? What changes
# for pairs twice as long?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# The decoder starts from the encoder's last state. In training the whole target is known.
# ```
#
# ```{solution} bg-ex-waits
# :class: dropdown
#
# $30 + 25 = 55$ steps against $6 + 6 = 12$ layers. At twice the length, 110 against 12. (The 12 are larger pieces of
# work, but each is spread over all positions.) In *use*, when the target is not known yet, both write one token after
# the other.
# ```

# %% [markdown]
# ## What to remember
#
# - Recurrent encoder-decoders pass the source through one vector; attention was invented to open that bottleneck, and
#   was an addition to a recurrent network.
# - Convolutional models removed the sequential steps, but keep distant positions several layers apart: in step with the
#   distance (ConvS2S) or with its logarithm (ByteNet).
# - Self-attention existed before the paper, on top of recurrent networks or in models that do not write.
# - The paper's claim is that neither recurrence nor convolution is needed: the first *transduction* model that relies
#   *entirely* on self-attention for its representations of input and output.
