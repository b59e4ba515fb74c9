# %% [markdown]
# # 0 The Transformer in one hour
#
# In this hour we go through the whole of *Attention Is All You Need* {cite}`vaswani2017attention` once: every box of
# its Figure 1, drawn and computed, then the complete model in 80 lines of PyTorch, how it learns and how it writes. All
# you need are Python, a little PyTorch, matrices, and what a sine and a logarithm are. One small sentence, *She bought
# it*, comes with us from the first section to the last.
#
# We run everything on one CPU core, in less than a minute.

# %% [markdown]
# (oh-translates)=
# ## It translates
#
# Let us first see what we are going to understand. This book has a small Transformer of its own, trained on a CPU, and
# we ask it for some German.

# %%
import torch
from annotated_transformer import Translator

translator = Translator.from_checkpoint("model")
english = ["She bought it.", "Where is the station?", "Can you help me?",
           "Tom sold his car because it was old.",
           "The children are playing in the garden."]
for line, german in zip(english, translator.translate(english)):
    print(f"{line}\n    {german}")

# %% [markdown]
# The model has read pairs of sentences and has learned all the rest from them: words, word order, that a German
# participle goes to the end. In the first line one English word, *bought*, has become two German ones, *hat* and
# *gekauft*, with *es* (it) between them. To write *gekauft*, the model has to look back at *bought*. This act of
# looking back is the heart of the model.
#
# What goes in and comes out are **tokens**: pieces of words, each with a number. The tokenizer cuts a sentence into
# pieces that are frequent in its training text, so a common word is one piece and a rare word several. The mark ▁
# stands for a space. The list of all tokens is the **vocabulary**; the paper's has about 37,000. Two special tokens
# mark the start and the end of a sentence, and a third fills up short sentences in a batch.

# %%
tokenizer, config = translator.tokenizer, translator.model.config
PAD, START, END = config.pad_id, config.bos_id, config.eos_id

def ids(text):
    return tokenizer.encode(text)

for text in ("She bought it.", "Tom sold his car."):
    print(" ".join(tokenizer.pieces(ids(text))), ids(text))
print("padding, start and end are", PAD, START, END)

# %% [markdown]
# ## Figure 1 of the paper, as a map
#
# Here is the whole machine. We read it from the bottom to the top. On the left the **encoder** reads the English
# sentence and makes one vector per token, the **memory**. On the right the **decoder** reads the German words written
# so far, consults the memory, and gives a probability to every token of the vocabulary: which one comes next?
#
# Three short arrows enter every attention box: queries, keys and values, which we meet in a moment. The arrow that goes
# around a box carries its input past it, and the dashed line joins the three places that share one table, $E$. Each
# numbered box is a link to the chapter that takes it apart.
#
# ![The Transformer as a map. Left, the encoder: source tokens, embedding, positions, N layers of attention and feed-forward. Right, the decoder: target tokens shifted right, embedding, positions, N layers of masked attention, attention over the memory, feed-forward; then linear and softmax. The boxes have the numbers 1 to 13, equal boxes the same; the table below says what each is.](figures/architecture_map.svg)
#
# | | box | here | in full |
# |---|---|---|---|
# | 1 | source tokens | [It translates](oh-translates) | [5.1](5_1_data_and_batching.ipynb) |
# | 2 | embedding | [One word looks at others](oh-look) | [3.4](3_4_embeddings_and_softmax.ipynb) |
# | 3 | positional encoding | [Where am I?](oh-where) | [3.5](3_5_positional_encoding.ipynb) |
# | 4 | multi-head attention | [One word looks at others](oh-look), [Eight looks at once](oh-heads) | [3.2](3_2_attention.ipynb) |
# | 5 | add & norm | [Add and norm](oh-norm) | [3.1](3_1_stacks.ipynb) |
# | 6 | feed-forward | [Each word by itself](oh-ffn) | [3.3](3_3_feed_forward.ipynb) |
# | 7 | *N* layers | [All of it in 80 lines](oh-listing) | [3.1](3_1_stacks.ipynb) |
# | 8 | target, shifted right | [It learns](oh-learns) | [5.2](5_2_training.ipynb) |
# | 9 | masked attention | [No peeking and no padding](oh-masks) | [3.2](3_2_attention.ipynb) |
# | 10 | attention over the memory | [One word looks at others](oh-look) | [3.2](3_2_attention.ipynb) |
# | 11, 12 | linear, softmax | [From a vector to a word](oh-word) | [3.4](3_4_embeddings_and_softmax.ipynb) |
# | 13 | the next token | [It writes](oh-writes) | [6.1](6_1_translation.ipynb) |

# %% [markdown]
# (oh-look)=
# ## One word looks at others
#
# A network computes with vectors, so box 2 exchanges each token for one. The **embedding** is a table $E$ with a row of
# $d_{\text{model}} = 512$ numbers per token, and the model learns these numbers. Our sentence is now three vectors,
# $x_1$ for *She*, $x_2$ for *bought* and $x_3$ for *it*. (We leave the full stop out of the drawings.)
#
# So far each vector knows one word. To know what *it* is, the vector of *it* has to look at its neighbours. We let it
# ask a question, the **query** $q$. Every word, in turn, wears a label that says what it has to offer, the **key** $k$,
# and carries something to hand over, the **value** $v$. All three are made from the word's vector $x$ by a learned matrix, and
# the same three matrices serve every word:
#
# $$ q = x\, W^Q, \qquad k = x\, W^K, \qquad v = x\, W^V. $$

# %% tags=["remove-input"] mystnb={"image": {"alt": "Three columns, one for each of the words She, bought and it. Below, the vector x of the word, a row of four squares. From it three arrows lead up through the matrices W Q, W K and W V, the same three for every word, to a query q, a key k and a value v of two squares each."}, "figure": {"caption": "Each word's vector $x$ gives a query, a key and a value, through three matrices that all words share. (Drawn small: 4 numbers for $x$, 2 for the others.)", "name": "fig-oh-qkv"}}
from IPython.display import SVG

SVG(filename="figures/query_key_value.svg")

# %% [markdown]
# Now *it* looks at the sentence in three steps. We take its query and compute the dot product with every key: a large
# number means that question and label fit. Then a **softmax** turns the numbers into weights: each score $s$
# becomes $e^s$, divided by the sum of all, so the weights are positive and add up to 1. Finally we take the mean of the values
# with these weights. Let us do it with small numbers; the division by $\sqrt{2}$ before the softmax is explained below.

# %%
q = torch.tensor([1.0, 2.0])                               # what "it" asks
K = torch.tensor([[0.0, 1.0], [1.0, 2.0], [1.0, 0.0]])     # She, bought, it
V = torch.tensor([[4.0, 0.0], [0.0, 4.0], [2.0, 2.0]])

scores = K @ q
weights = (scores / 2 ** 0.5).softmax(dim=0)
print("dot products ", scores.tolist())
print("weights      ", [f"{w:.2f}" for w in weights])
print("weighted mean", [f"{x:.2f}" for x in weights @ V])

# %% tags=["remove-input"] mystnb={"image": {"alt": "Read from below. The query of the word it, (1, 2), is multiplied with the keys of She, bought and it; the products are 2, 5 and 1. Divided by the square root of 2 and put through a softmax they become weights, She 0.10, bought 0.85, it 0.05. The three values, each multiplied by its weight, add up to the result (0.51, 3.49)."}, "figure": {"caption": "The same, drawn: *it* looks at three keys and takes 85 percent of its answer from *bought*.", "name": "fig-oh-look"}}
SVG(filename="figures/one_look.svg")

# %% [markdown]
# The $\sqrt{2}$ is $\sqrt{d_k}$, where $d_k$ is the length of the keys. A dot product adds $d_k$ terms of either sign,
# and such a sum grows like $\sqrt{d_k}$; dividing by it keeps all sizes alike. Without it a softmax of large numbers
# gives nearly all its weight to one word, where small changes of the scores change next to nothing, and the model
# learns less well. If we stack the queries of all words into one matrix $Q$, and likewise $K$ and $V$, we have the
# first equation of the paper:
#
# $$ \operatorname{Attention}(Q, K, V) = \operatorname{softmax}\!\left( \frac{Q K^T}{\sqrt{d_k}} \right) V. $$
#
# The map uses this one operation in three places. In the encoder (box 4) English words look at English words, and in
# the decoder (box 9) German words look at German words. In box 10 the two languages meet: the queries come from the
# German words and the keys and values from the memory, the encoder's vectors for the English words. Each German
# position asks there: which English words do I need for the word I am about to write?
#
# Does a trained model really look at what it translates? We give the book's model a somewhat longer pair and record the
# weights of box 10 in its last layer (boxes come in stacks, and each looks several times, as we shall see). Each row is
# the moment before the decoder writes a token.

# %%
from annotated_transformer.looking.record import record_attention

source = torch.tensor([[*ids("She bought a red umbrella."), END]])
target = torch.tensor([[START, *ids("Sie hat einen roten Schirm gekauft.")]])
with torch.no_grad(), record_attention(translator.model) as recorded:
    translator.model(source, target)
last = f"decoder.layers.{config.N - 1}.cross_attention"
looks = recorded[last][0].mean(0)                             # mean of all heads
english = tokenizer.pieces(source[0, :-1].tolist()) + ["end"]
german = tokenizer.pieces(target[0, 1:].tolist()) + ["end"]
for word, row in zip(german, looks):
    print(f"{word:10} looks most at {english[row.argmax()]:10} {row.max():.2f}")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Heat map of attention weights, German tokens down, English tokens across. Bright cells join German words to the English words that they translate: Sie to She, hat and gekauft to bought, the first piece of roten to red, Schirm to umbrella."}, "figure": {"caption": "The model's own attention over the memory, last layer, mean of its heads. A row sums to 1.", "name": "fig-oh-cross"}}
import matplotlib.pyplot as plt
from annotated_transformer.looking.record import plot_attention
from lab.display import use_style

use_style()
figure, ax = plt.subplots(figsize=(4.6, 3.9), layout="constrained")
plot_attention(looks, german, english, ax=ax)
ax.set(xlabel="key: English token", ylabel="query: before writing this token")
figure.colorbar(ax.images[0], ax=ax, label="attention weight")
plt.show()

# %% [markdown]
# Compare the rows of *hat* and *gekauft*, which are far apart in the German sentence and translate one English word.
# Only the full stop and the end mark look mostly at the English end mark. Nobody told the model which word belongs to
# which: it has found out by learning to predict the next token. [Chapter 7](7_attention_visualizations.ipynb) lets you
# explore all of its maps.

# %% [markdown]
# (oh-heads)=
# ## Eight looks at once
#
# One look gives one mixture. But a word has several questions at a time: who did it, what was bought, which word comes
# before me? So the paper looks eight times in parallel. We multiply as before and get 512 numbers for the query, the
# key and the value of a word. Then we cut each of them into $h = 8$ pieces of $d_k = 64$ numbers. Piece 1 of the query
# meets piece 1 of the keys, and so on: eight **heads**, each with a softmax and a pattern of its own.

# %% tags=["remove-input"] mystnb={"image": {"alt": "Read from below. A bar of 512 numbers for the queries, keys and values of a word is cut into eight coloured pieces of 64. Each piece goes into its own small attention map of three by three words, and every map has a different pattern. The eight results of 64 numbers are joined to 512 and multiplied by the matrix W O."}, "figure": {"caption": "512 = 8 × 64: cut, look eight times, join. Each small square is a head's map of three words looking at three.", "name": "fig-oh-heads"}}
SVG(filename="figures/heads.svg")

# %% [markdown]
# The eight answers, 64 numbers each, are joined to 512 again, and a fourth matrix $W^O$ mixes them. The cost is about
# that of one look with all 512 numbers, because we only cut what was there. Four matrices of $512 \times 512$ numbers
# are all the parameters of box 4.

# %%
words, h, d_k = 3, 8, 64
Q = torch.randn(words, h * d_k)                     # 512 numbers for each word
cut = Q.view(words, h, d_k).transpose(0, 1)         # heads first
joined = cut.transpose(0, 1).reshape(words, h * d_k)
print("cut   ", tuple(cut.shape))
print("joined", tuple(joined.shape), "as before:", joined.equal(Q))

# %% [markdown]
# (oh-masks)=
# ## No peeking and no padding
#
# Some looks must be forbidden, for two reasons.
#
# **Padding.** We train on many sentences at once, in a rectangle of token numbers. Short sentences are filled up with a
# padding token, and a real word that looked at it would pick up rubbish. (What padding itself sees is never used.)
#
# **Peeking.** In training we show the decoder the whole German sentence and ask it, at every position, for the next
# word. The input at position 3 is the answer that position 2 has to give: if position 2 could look there, it would copy
# the answer and learn nothing. So each position may look at itself and at earlier ones.

# %% tags=["remove-input"] mystnb={"image": {"alt": "Two grids, queries down and keys across; a filled cell means that the query may look at the key. Left, the padding mask: for the source She, bought, it, pad, pad the three columns of the words are filled and the two of the padding are crossed out. Right, the causal mask: for the target start, Sie, hat, es, gekauft the lower triangle with its diagonal is filled, so that each word sees itself and the words before it."}, "figure": {"caption": "What each query (row) may look at. Left, the padding mask for the source. Right, the causal mask for the target.", "name": "fig-oh-masks"}}
SVG(filename="figures/both_masks.svg")

# %% [markdown]
# In code a **mask** is a table of true and false, and true means *may look*. Where it is false we replace the score
# with minus infinity before the softmax, and $e^{-\infty} = 0$ makes the weight exactly zero. Boxes 4 and 10 look at
# the English sentence and take its padding mask; box 9 takes the triangle, which hides German padding too, since that
# comes last ([3.2.3](3_2_masks.ipynb)).

# %%
scores = torch.tensor([[2.0, 5.0, 1.0], [1.0, 1.0, 3.0], [0.0, 2.0, 2.0]])
may_look = torch.ones(3, 3, dtype=torch.bool).tril()      # the lower triangle
print(scores.masked_fill(~may_look, -torch.inf).softmax(dim=-1))

# %% [markdown]
# (oh-ffn)=
# ## Each word by itself
#
# Attention moves information between words and mixes it. The **feed-forward network** (box 6) then works on what has
# arrived, one word at a time:
#
# $$ \operatorname{FFN}(x) = \max(0,\; x W_1 + b_1)\, W_2 + b_2. $$
#
# We stretch 512 numbers to 2,048, set the negative ones to zero (a ReLU), and come back to 512. You can think of each
# of the 2,048 numbers as a detector: it lights up if the word's vector shows a certain pattern, and then $W_2$ adds
# that detector's row to the result, the more strongly the brighter it lights. All positions use the same two matrices.

# %% tags=["remove-input"] mystnb={"image": {"alt": "Three columns for the words She, bought and it, each read from below: a short bar of 512 numbers, the matrix W 1 and a ReLU, a bar four times as wide of 2,048 numbers in which some cells are zero, the matrix W 2, and a short bar of 512 numbers. The matrices of all columns are the same; no arrow joins two columns."}, "figure": {"caption": "512 to 2,048 to 512, with the same matrices at each position. White cells are zero after the ReLU.", "name": "fig-oh-ffn"}}
SVG(filename="figures/wide_and_back.svg")

# %% [markdown]
# Two thirds of an encoder layer's parameters are here: $2 \cdot 512 \cdot 2048$ against $4 \cdot 512 \cdot 512$ for
# attention.

# %% [markdown]
# (oh-where)=
# ## Where am I?
#
# There is a surprise in what we have built. A weighted mean does not depend on the order of its terms, so each word
# gets the same answer in *She bought it* and in *it bought She*. The order has to come in some other way. Box 3 adds a
# vector to each embedding that says: you are word number 0, 1, 2, and so on.
#
# A clock shows how. Its hands turn at different speeds, and their angles together tell the time uniquely. The paper
# gives every position 256 hands. The fastest turns by one radian per word, the slowest by about a ten-thousandth of
# that, and a hand is stored as two numbers, its sine and cosine:
#
# $$ PE_{(pos,\,2i)} = \sin\frac{pos}{10000^{2i/d_{\text{model}}}}, \qquad
# PE_{(pos,\,2i+1)} = \cos\frac{pos}{10000^{2i/d_{\text{model}}}}. $$

# %% tags=["remove-input"] mystnb={"image": {"alt": "A table of clock faces: five columns for positions 0 to 4 with the words start, Sie, hat, es, gekauft, four rows for four pairs of numbers. In the first row the hand turns by one radian per position, in the second by a half, in the third by a fifth, in the fourth by a twentieth. No two columns show the same hands."}, "figure": {"caption": "Four hands at five positions, with speeds like the paper's. The hands of a column are the position's vector; each row turns at its own speed.", "name": "fig-oh-clock"}}
SVG(filename="figures/clock_hands.svg")

# %% [markdown]
# Going three words further turns every hand by a fixed angle, wherever we start. So a single rotation lets a head *look
# three words back* from anywhere, which the authors hoped would be easy to learn. The numbers of $E$ start small, so
# the embedding is multiplied by $\sqrt{512}$ before the position is added: what a word means is then about as loud as
# where it is.

# %%
speeds = 1 / 10000 ** (torch.arange(0, 512, 2) / 512)
print(f"{len(speeds)} hands, {speeds[0]:.1f} to {speeds[-1]:.6f} radians per word")

# %% [markdown]
# (oh-norm)=
# ## Add and norm
#
# Every attention and every feed-forward network sits in the same frame (box 5):
#
# $$ \operatorname{LayerNorm}(x + \operatorname{Sublayer}(x)), $$
#
# where *Sublayer* is the one or the other.
#
# **Add.** The sub-layer's answer is added to its input, which comes along the arrow around the box, the **residual
# connection**. So a sub-layer only has to learn what to *change*, and a word is still recognisable after many layers.
# The sum also gives the gradient a direct way back to the lower layers.
#
# **Norm.** For each word we subtract the mean of its 512 numbers and divide by their standard deviation, then multiply
# and shift by learned numbers. So the numbers stay near 1 in size, through all layers.

# %% tags=["remove-input"] mystnb={"image": {"alt": "Read from below. The vector x, (1, 2, -1, 0), takes two ways: straight up, and through a sub-layer, which answers (0.5, -1, 1, 1.5). The two meet in a plus sign, (1.5, 1, 0, 1.5). A LayerNorm subtracts the mean and divides by the standard deviation: (0.82, 0.00, -1.63, 0.82)."}, "figure": {"caption": "Add, then norm, on four numbers: the arrow on the left is the residual connection.", "name": "fig-oh-norm"}}
SVG(filename="figures/sum_and_norm.svg")

# %% [markdown]
# In training, **dropout** sets a random tenth of the answer's numbers to zero just before the sum, and likewise after
# the embedding, so that the model relies on no single number.

# %% [markdown]
# (oh-word)=
# ## From a vector to a word
#
# At the top of the decoder we have one vector of 512 numbers for each German position, and we want a word. Box 11,
# *linear*, compares the vector with every row of the table $E$ by a dot product, which gives one score per token of the
# vocabulary. Box 12, *softmax*, turns the scores into probabilities. English and German share one
# vocabulary, so this is the same table that both embeddings read, the dashed line of the map. The model says a word by
# making a vector that points in the direction of this word's own row.
#
# Here are two moments: before the first word, and after *Sie*.

# %%
source = torch.tensor([[*ids("She bought it."), END]])
so_far = torch.tensor([[START, *ids("Sie")]])
with torch.no_grad():
    probabilities = translator.model(source, so_far)[0].softmax(dim=-1)
best = [row.topk(5) for row in probabilities]
for words, top in zip(("start", "start Sie"), best):
    tokens = zip(tokenizer.pieces(top.indices.tolist()), top.values)
    print(f"{words:10}", "  ".join(f"{token} {p:.2f}" for token, p in tokens))
print(f"all {probabilities.size(-1):,} tokens: {probabilities[0].sum():.4f}")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two bar charts of the five most probable next tokens. After the start token one token, Sie, has most of the probability. After Sie the probability is shared by ways to go on, hat among them."}, "figure": {"caption": "The model's answer for *She bought it*: the five most probable tokens, at two positions.", "name": "fig-oh-next"}}
figure, axes = plt.subplots(1, 2, figsize=(5.8, 2.4), layout="constrained", sharex=True)
for ax, title, top in zip(axes, ("after: start", "after: start Sie"), best):
    tokens = [t.strip("▁") for t in tokenizer.pieces(top.indices.tolist())]
    bars = ax.barh(range(5), top.values, color="#56B4E9")
    ax.bar_label(bars, fmt="%.2f", padding=3)
    ax.set_yticks(range(5), labels=tokens)
    ax.invert_yaxis()
    ax.set(title=title, xlabel="probability", xlim=(0, 1.15))
plt.show()

# %% [markdown]
# ```{translator} tokens
# :text: She bought it.
# ```
#
# After *Sie* there are two good ways to go on, since *hat ... gekauft* and *kaufte* are both right German, and we see how
# the model divides its probability between them.
#
# (oh-listing)=
# ## All of it in 80 lines
#
# Now we have every box and can put the machine together. An encoder **layer** is attention and a feed-forward network,
# each in its frame, and a decoder layer has the attention over the memory between the two. We stack $N = 6$ layers on
# each side (box 7). They have the same form, and each has weights of its own. What the first layer has gathered for a
# word, the second can look at and combine further: an *it* that has absorbed *bought* can now be recognised as the thing
# bought.
# The top of the encoder's stack is the memory, and every decoder layer looks at this same memory.
#
# Here is the complete model in the paper's notation and sizes. It imports only PyTorch. Retype it one day:
# it takes a quarter of an hour and is the best exercise in the book. In the first class `unflatten` cuts the 512
# numbers into heads and `flatten` joins them. A mask enters each attention as an argument. `memory` is the
# sentence that is looked at: the encoder's output in box 10, the cross-attention, and `x` itself in boxes 4 and 9, the
# self-attention. In the comments $B$ is the number of sentences and $L$ their length.

# %% tags=["whole-model"]
import torch
from torch import nn
class MultiHeadAttention(nn.Module):  # boxes 4, 9 and 10
    def __init__(self, d_model, h):
        super().__init__()
        self.h = h
        self.W_Q, self.W_K, self.W_V, self.W_O = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4))

    def forward(self, x, memory, mask):
        Q, K, V = (y.unflatten(-1, (self.h, -1)).transpose(1, 2)  # (B, h, L, d_k)
                   for y in (self.W_Q(x), self.W_K(memory), self.W_V(memory)))
        scores = Q @ K.transpose(-2, -1) / Q.size(-1) ** 0.5  # (B, h, queries, keys)
        weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
        return self.W_O((weights @ V).transpose(1, 2).flatten(-2))

class FeedForward(nn.Module):  # box 6
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.W_1, self.W_2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)

    def forward(self, x):
        return self.W_2(self.W_1(x).relu())

class AddNorm(nn.Module):  # box 5
    def __init__(self, d_model, p_drop):
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(d_model), nn.Dropout(p_drop)

    def forward(self, x, answer):
        return self.norm(x + self.dropout(answer))

class EncoderLayer(nn.Module):  # box 7, left
    def __init__(self, d_model, d_ff, h, p_drop):
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, h)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.add_norm_1 = AddNorm(d_model, p_drop)
        self.add_norm_2 = AddNorm(d_model, p_drop)

    def forward(self, x, mask):
        x = self.add_norm_1(x, self.self_attention(x, x, mask))
        return self.add_norm_2(x, self.feed_forward(x))

class DecoderLayer(EncoderLayer):  # box 7, right: one attention more
    def __init__(self, d_model, d_ff, h, p_drop):
        super().__init__(d_model, d_ff, h, p_drop)
        self.cross_attention = MultiHeadAttention(d_model, h)
        self.add_norm_3 = AddNorm(d_model, p_drop)

    def forward(self, x, memory, source_mask, target_mask):
        x = self.add_norm_1(x, self.self_attention(x, x, target_mask))
        x = self.add_norm_2(x, self.cross_attention(x, memory, source_mask))
        return self.add_norm_3(x, self.feed_forward(x))

class Transformer(nn.Module):
    def __init__(self, vocab_size, N=6, d_model=512, d_ff=2048, h=8, p_drop=0.1):
        super().__init__()
        self.E = nn.Parameter(torch.randn(vocab_size, d_model) / d_model ** 0.5)
        sizes = d_model, d_ff, h, p_drop
        self.dropout = nn.Dropout(p_drop)
        self.encoder = nn.ModuleList(EncoderLayer(*sizes) for _ in range(N))
        self.decoder = nn.ModuleList(DecoderLayer(*sizes) for _ in range(N))

    def embed(self, tokens):  # boxes 2 and 3
        n, d = tokens.size(1), self.E.size(1)
        angle = torch.arange(n)[:, None] / 10000 ** (torch.arange(0, d, 2) / d)
        positions = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)
        return self.dropout(self.E[tokens] * d ** 0.5 + positions.to(self.E))

    def forward(self, source, target, pad=0):
        memory, x = self.embed(source), self.embed(target)
        source_mask = (source != pad)[:, None, None, :]  # true: may look
        target_mask = x.new_ones(x.size(1), x.size(1)).tril().bool()
        for layer in self.encoder:
            memory = layer(memory, source_mask)
        for layer in self.decoder:
            x = layer(x, memory, source_mask, target_mask)
        return x @ self.E.T  # box 11; its softmax is box 12
print(f"{sum(p.numel() for p in Transformer(37_000).parameters()):,} parameters")

# %% [markdown]
# Let us follow a batch through `forward`. Two sentences of 7 tokens enter as a table of $2 \times 7$ numbers. `embed` makes it $2 \times 7 \times 512$, and every layer keeps this shape, so that layers can be stacked. With a target of 5 tokens the attention over the memory has $5 \times 7$ weights in each head. The
# last line multiplies by $E^T$ and gives one score per token of the vocabulary at each of the 5 positions.
#
# Is it right? We load the weights of the book's trained model, renamed, into our listing, and compare the
# scores of both for one pair of sentences, with some padding to test the mask.

# %%
from torch.testing import assert_close

renamed = {name.replace(".layers.", ".").replace("embedding.weight", "E"): weight
           for name, weight in translator.model.state_dict().items()}
c, source = config, torch.tensor([[*ids("She bought it."), END, PAD, PAD]])
target = torch.tensor([[START, *ids("Sie hat es gekauft.")]])
model = Transformer(c.vocab_size, c.N, c.d_model, c.d_ff, c.h, c.p_drop).eval()
model.load_state_dict(renamed)
with torch.no_grad():
    ours, theirs = model(source, target), translator.model(source, target)
assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
print("equal:", tuple(ours.shape), "scores, for sentences, positions, tokens")

# %% [markdown]
# (oh-learns)=
# ## It learns
#
# To train, we need a question and an answer. The question is the English sentence with the German one so far, and the
# answer is the next German token. One pair of sentences contains many such questions. We feed the decoder
# the German sentence **shifted right** by one place (box 8), with the start token in front and without the last token, and it answers at all
# positions at once. The triangle of box 9 keeps it honest, and positions of padding do not count. The inputs are
# always the right words, whatever the model would have said; this is called **teacher forcing**.

# %% tags=["remove-input"] mystnb={"image": {"alt": "Two panels. Above, training: the decoder's inputs are start, Sie, hat, es, gekauft, all from the reference, and at each of the five positions it must give the next token: Sie, hat, es, gekauft, end; all five are computed at once. Below, writing: the inputs are start and then what the model itself has written; an arrow leads from each output to the next input, and lines lead from all earlier inputs into each step, one step per token."}, "figure": {"caption": "Above, training: the words of the human translation are given (green), and all answers (orange) are computed at once. Below, writing: one step per word; each step reads all words so far, and its last answer becomes the next input.", "name": "fig-oh-shifted"}}
SVG(filename="figures/shifted.svg")

# %% [markdown]
# The **loss** at a position is minus the logarithm of the probability that the model gave to the right token: 0 if it
# was sure, large if it was surprised (`cross_entropy` makes the softmax and takes the mean). We lower it by gradient steps. Let us teach a fresh, small copy of
# our listing one pair by heart.

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
pupil = Transformer(c.vocab_size, N=2, d_model=64, d_ff=256, h=4, p_drop=0.0)
adam = torch.optim.Adam(pupil.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9)
source = torch.tensor([[*ids("She bought it."), END]])
target = torch.tensor([[START, *ids("Sie hat es gekauft."), END]])
for step in range(41):
    scores = pupil(source, target[:, :-1])                         # given: START Sie ...
    loss = nn.functional.cross_entropy(scores[0], target[0, 1:])   # asked: Sie hat ... END
    if step % 10 == 0:
        print(f"step {step:2d}  loss {loss.item():.2f}")
    adam.zero_grad()
    loss.backward()
    adam.step()
assert loss < 0.5

# %% [markdown]
# Real training is the same loop with more data, and three refinements. The loss asks for 0.9 on the right token and for
# the rest spread over all tokens, which keeps the model from being too sure: **label smoothing**. The learning rate
# rises during a **warm-up** of 4,000 steps, while the weights are still raw and large steps would do harm, and then
# falls in proportion to one over the square root of the step. And batches hold sentences of similar length, so that
# little is padding. Here is the first stage of the book's model. BLEU is a score from 0 to 100 that counts how many
# words, pairs, triples and quadruples of words a translation shares with a human one.

# %% tags=["hide-input"]
import json
from pathlib import Path
from annotated_transformer import noam_learning_rate

record = json.loads(Path("results/tatoeba_large.json").read_text())["records"][0]
log = record["stages"][0]["validation_log"]
for entry in (log[0], log[-1]):
    print(f"step {entry['step']:6,}  loss {entry['valid_nll']:.2f}  "
          f"BLEU {entry['valid_bleu']:.1f}")
assert log[-1]["valid_nll"] < log[0]["valid_nll"]

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two charts. Left: the learning rate rises in a straight line for 4,000 steps and then falls in a slowing curve. Right: the loss of the book's model on unseen sentence pairs falls fast at first and then ever more slowly."}, "figure": {"caption": "Left: the paper's learning rate for its base model. Right: the first of the two stages of the book's model's training, scored on sentence pairs that it was never trained on.", "name": "fig-oh-curves"}}
figure, (left, right) = plt.subplots(1, 2, figsize=(5.9, 2.6), layout="constrained")
steps = range(1, 40_001, 50)
left.plot(steps, [noam_learning_rate(step, 512, 4000) for step in steps])
left.axvline(4000, color="#666666", linestyle=":")
left.annotate("warm-up ends", (5200, 0.00066), fontsize=9)
left.set(xlabel="step", ylabel="learning rate", title="the paper's learning rate")
right.plot([e["step"] for e in log], [e["valid_nll"] for e in log], marker="o", markersize=4)
right.set(xlabel="step", ylabel="loss per token", title="the book's model, unseen pairs")
for ax in (left, right):
    ax.ticklabel_format(axis="y", style="sci", scilimits=(-2, 4))
    ax.xaxis.set_major_locator(plt.MaxNLocator(4))
plt.show()

# %% [markdown]
# (oh-writes)=
# ## It writes
#
# A trained model answers one question: which token comes next? To write a sentence we take a token from the
# probabilities of box 13, append it to the input of box 8, and ask again, until the answer is the end token. Each time
# only the last position's answer counts. If we take the most probable token each time, the search is
# **greedy**. We use our 80-line model, with the trained weights.

# %%
@torch.no_grad()
def greedy(model, text, longest=30):
    source, target = torch.tensor([[*ids(text), END]]), torch.tensor([[START]])
    while target[0, -1] != END and target.size(1) < longest:
        best = model(source, target)[:, -1:].argmax(dim=-1)
        target = torch.cat([target, best], dim=1)
    return tokenizer.decode(target[0, 1:].tolist())

print("the book's weights in our listing:", greedy(model, "She bought it."))
print("the pupil, who knows one sentence:", greedy(pupil, "She bought it."))

# %% [markdown]
# Greedy search cannot take back a choice. *Sie hat ...* and *Sie kaufte ...* are both good beginnings,
# and which one ends better shows only later. **Beam search**, which `translate` used at the start of this hour,
# extends each of the four best beginnings at every step and keeps the best four results; a finished sentence stays
# one of the four. The probability of a sentence is the product of its
# tokens' probabilities, so we add logarithms. A longer sentence has more factors below 1, which is unfair to it, so the
# score, a negative number, divides the sum by $((5 + n)/6)^{0.6}$, where $n$ is the number of tokens ([6.1](6_1_translation.ipynb)).

# %%
from annotated_transformer import beam_search

source = torch.tensor([[*ids("She bought it."), END]])
found = beam_search(translator.search_model, source, beam_size=4, n_best=4)[0]
for hypothesis in found:
    print(f"score {hypothesis.score:6.2f}  log P {hypothesis.log_p:6.2f}  "
          f"{tokenizer.decode(hypothesis.tokens)}")

# %% tags=["hide-cell"]
def tree(hypotheses):
    "Where each beginning is drawn, right and down; those with words in common are neighbours."
    starts = [[(*h.tokens, END)[:n] for n in range(len(h.tokens) + 2)] for h in hypotheses]
    first = {}
    for rank, mine in enumerate(starts):
        for start in mine:
            first.setdefault(start, rank)
    rows = {}
    for row, mine in enumerate(sorted(starts, key=lambda mine: [first[start] for start in mine])):
        for start in mine:
            rows.setdefault(start, []).append(row)
    return {start: (len(start), sum(at) / len(at)) for start, at in rows.items()}

# %% tags=["hide-cell"]
@torch.no_grad()
def label(start):
    "The last token of `start`, and its probability given those before it."
    if not start:
        return "start"
    logits = model(source, torch.tensor([[START, *start[:-1]]]))[0, -1]
    word = "end" if start[-1] == END else tokenizer.pieces([start[-1]])[0].strip("▁")
    return f"{word}\n{logits.softmax(dim=-1)[start[-1]]:.2f}"

# %% tags=["hide-input"] mystnb={"image": {"alt": "A tree from left to right. From the start token one branch goes to the first German word and forks into several beginnings; each box has a token and its probability, and at the end of each of four branches stands the score of the whole sentence."}, "figure": {"caption": "The four sentences that a beam of four has found for *She bought it*, as a tree. In a box: the token and its probability after what stands left of it. On the right: the score.", "name": "fig-oh-beam"}}
figure, ax = plt.subplots(figsize=(6.0, 3.0), layout="constrained")
places, scores = tree(found), {(*h.tokens, END): h.score for h in found}
for start, (x, y) in places.items():
    if start:
        ax.plot(*zip(places[start[:-1]], (x, y)), color="#999999", linewidth=1, zorder=0)
    ax.text(x, y, label(start), ha="center", va="center", fontsize=9, bbox={
        "boxstyle": "round", "facecolor": "#dcf0fb", "edgecolor": "#56b4e9"})
    if start in scores:
        ax.text(x + 0.5, y, f"{scores[start]:.2f}", va="center", weight="bold")
ax.set(xlim=(-0.4, max(x for x, _ in places.values()) + 1), ylim=(3.5, -0.5))
ax.axis("off")
plt.show()

# %% [markdown]
# ## Why it won
#
# In 2016 the best neural translation systems were recurrent networks, which read word after word. Let us compare one
# layer of each kind on a sentence of $n$ words with vectors of $d$ numbers, by what carries information from word to
# word: in attention $n^2$ dot products of length $d$, in a recurrent network $n$ products of a vector with a matrix of
# $d^2$ numbers. (Attention's four matrices add $4nd^2$, so a whole layer costs more; [chapter
# 4](4_why_self_attention.ipynb) counts everything.)

# %%
d = 512
for n in (30, 512, 4000):
    attention, recurrent = n * n * d, n * d * d
    print(f"n = {n:5,}: n²d = {attention:13,}   nd² = {recurrent:13,}")

# %% [markdown]
# For sentences, which are much shorter than 512 words, looking costs less. More important in training is the *order* of
# these operations. The recurrent network must finish word 1 before it can begin word 2, while attention computes all
# pairs together, in one large matrix product, which is what GPUs are good at. And a word reaches any other in a single step, so that
# the model can learn links between distant words.

# %% tags=["remove-input"] mystnb={"image": {"alt": "Two rows of eight circles for eight words. Above, a recurrent network: arrows lead from each circle to the next, so that seven arrows join the first to the last. Below, attention: arcs lead from the last circle directly to every other one; the arc to the first is drawn thick."}, "figure": {"caption": "From word 1 to word 8: a signal takes seven steps in a recurrent network, and one look in attention.", "name": "fig-oh-paths"}}
SVG(filename="figures/paths.svg")

# %% [markdown]
# The paper's larger model reached 28.4 BLEU from English to German, more than any system before it, after three and a
# half days on eight GPUs. Then its two halves went separate ways. The encoder alone became BERT {cite}`devlin2019bert`, a
# reader; the decoder alone became GPT {cite}`radford2018improving`, a writer, and the language models that you talk to
# today are its descendants. With small patches of an image in place of words the same stack can see
# {cite}`dosovitskiy2021image`, and with slices of sound it transcribes speech {cite}`radford2023robust`. The boxes have
# changed remarkably little: [After the paper](after_the_paper.ipynb) names what did.

# %% [markdown]
# ## Three questions to test yourself
#
# ```{exercise} Three matrices
# :label: exercise-oh-qkv
#
# In box 10, which of $Q$, $K$ and $V$ are made from the English words, and which from the German ones? What is the shape of
# $Q K^T$ for 5 German and 7 English tokens?
# ```
#
# ```{solution} exercise-oh-qkv
# :class: dropdown
#
# $K$ and $V$ come from the memory, which is English; $Q$ comes from the German words written so far. Each of the 5 queries meets
# 7 keys, so $Q K^T$ has 5 rows and 7 columns in every head.
# ```
#
# ```{exercise} Without the triangle
# :label: exercise-oh-mask
#
# You forget the causal mask. What happens to the loss in training, and what happens when the model writes?
# ```
#
# ```{solution} exercise-oh-mask
# :class: dropdown
#
# The training loss falls close to zero, because each position can read its answer one place to the right. When the model writes,
# that place is empty, and the output is worthless. A loss that looks too good is the symptom.
# ```
#
# ```{exercise} Which box?
# :label: exercise-oh-boxes
#
# Name the box that moves information between words, the box that tells *She bought it* from *it bought She*, and the box
# with the most parameters in an encoder layer.
# ```
#
# ```{solution} exercise-oh-boxes
# :class: dropdown
#
# Attention (4, and likewise 9 and 10) moves information; positional encoding (3) gives the order; the feed-forward network (6) has two
# thirds of the layer's parameters.
# ```
#
# ```{dropdown} Where this is
# The package's own model is `annotated_transformer.model`, split by the sections of the paper; a test holds the listing to 80
# lines and to the package's scores.
# ```
#
# You now know every box. [Chapter 1](1_introduction.ipynb) follows one sentence through the package that we used here,
# and the map above leads to everything else.
