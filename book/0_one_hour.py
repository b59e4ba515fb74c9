# %% [markdown]
# # 0 The Transformer in one hour
#
# In this hour we go once through the model of *Attention Is All You Need* {cite}`vaswani2017attention`: every box of its
# Figure 1, drawn and computed, then the complete program in 80 lines of PyTorch, how it learns and how it writes. All
# you need are Python, a little PyTorch, matrices, and what a sine and a logarithm are. One small sentence, *She bought
# it*, comes with us from the first section to the last. It all runs in a minute, on one CPU core.

# %% [markdown]
# (oh-translates)=
# ## It translates
#
# First, a look at the thing we want to understand. This book has a small Transformer of its own, trained on a CPU from
# some 190,000 pairs of everyday sentences, and we ask it for some German.

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
# It was given what pairs of sentences hold: no dictionary, no grammar. In the first line one English word, *bought*, has become two German ones, *hat* and
# *gekauft*, with *es* (it) between them. To write *gekauft*, the model has to look back at *bought*. This
# looking back is its heart.
#
# What goes in and comes out are **tokens**: pieces of words, each with a number. The tokenizer cuts a sentence into
# pieces that are frequent in its training text, so a common word is one piece and a rare word several, and no word is
# impossible. The mark ▁ stands for a space. The list of all tokens is the **vocabulary**; the paper's has about 37,000. Two special tokens
# mark the start and the end of a sentence, and a third fills up short sentences in a batch.

# %%
tokenizer, config = translator.tokenizer, translator.model.config
PAD, START, END = config.pad_id, config.bos_id, config.eos_id

def ids(text):
    return tokenizer.encode(text)

for text in ("She bought it.", "He is unhappily married."):
    print(" ".join(tokenizer.pieces(ids(text))), ids(text))
print("padding, start and end are", PAD, START, END)

# %% [markdown]
# ## Figure 1 of the paper, as a map
#
# Here is the whole machine, to be read from below. On the left the **encoder** reads the
# English sentence and makes one vector per token; all of them together are the **memory**. On the right the **decoder**
# reads the German words written so far, consults the memory, and gives a probability to every token of the vocabulary:
# which one comes next? We begin with the heart, attention, and then fill in the rest.
#
# Three short arrows enter every attention box: queries, keys and values, which we meet in a moment. The arrow that goes
# around a box carries its input past it. The dashed line joins three places that share one table, $E$. On the site
# each numbered box is a link.
#
# ![The Transformer as a map: the encoder on the left, the decoder on the right, their boxes numbered 1 to 13 as in the table below, equal boxes alike.](figures/architecture_map.svg)
#
# | | box (the paper's name) | here | in full |
# |---|---|---|---|
# | 1 | source tokens (inputs) | [It translates](oh-translates) | [5.1](5_1_data_and_batching.ipynb) |
# | 2, 11, 12 | embedding; linear, softmax | [One word](oh-look), [From a vector](oh-word) | [3.4](3_4_embeddings_and_softmax.ipynb) |
# | 3 | positional encoding | [Where am I?](oh-where) | [3.5](3_5_positional_encoding.ipynb) |
# | 4, 10 | multi-head attention; over the memory | [One word](oh-look), [Eight looks](oh-heads) | [3.2](3_2_attention.ipynb) |
# | 5, 7 | add & norm; *N* layers (N×) | [Add and norm](oh-norm), [80 lines](oh-listing) | [3.1](3_1_stacks.ipynb) |
# | 6 | feed-forward | [Each word by itself](oh-ffn) | [3.3](3_3_feed_forward.ipynb) |
# | 8 | target (outputs), shifted right | [It learns](oh-learns) | [5.2](5_2_training.ipynb) |
# | 9 | masked attention | [No peeking](oh-masks) | [3.2.3](3_2_masks.ipynb) |
# | 13 | the next token (output probabilities) | [It writes](oh-writes) | [6.1](6_1_translation.ipynb) |

# %% [markdown]
# (oh-look)=
# ## One word looks at others
#
# A network computes with vectors, so box 2 replaces each token by a vector. The **embedding** is a table $E$ with a row
# of $d_{\text{model}} = 512$ numbers per token, and the model learns these numbers. Our sentence is now three vectors,
# $x_0$ for *She*, $x_1$ for *bought* and $x_2$ for *it*; positions are counted from 0 throughout.
#
# So far each vector knows one word. To know what *it* is, the vector of *it* has to look at its neighbours. We let it
# ask a question, the **query** $q$. Every word, for its part, wears a label that says what it has to offer, the **key**
# $k$, and carries something to hand over, the **value** $v$. Each of the three is made from the word's vector $x$ by a
# learned matrix of $512 \times d_k$ numbers, and the same matrices serve every word:
#
# $$ q = x\, W^Q, \qquad k = x\, W^K, \qquad v = x\, W^V. $$

# %% tags=["remove-input"] mystnb={"image": {"alt": "Three columns, one for each of the words She, bought and it. Below, the vector x of the word, a row of four squares. From it three arrows lead up through the matrices W Q, W K and W V, the same three for every word, to a query q, a key k and a value v of two squares each."}, "figure": {"caption": "Each word's vector $x$ gives a query, a key and a value, through three matrices that all words share. (Drawn small: 4 numbers for $x$, 2 for the others.)", "name": "fig-oh-qkv"}}
from IPython.display import SVG

SVG(filename="figures/query_key_value.svg")

# %% [markdown]
# Now *it* looks at the sentence in three steps. We take its query and compute the dot product with every key: a large
# number means that the question fits the label. Then a **softmax** turns these scores, which may be negative, into
# weights: each score $s$ becomes $e^s$, divided by the sum of all, so the weights are positive and add up to 1. Finally
# we take the mean of the values with these weights. Let us do it with invented numbers; the division by $\sqrt{2}$ is
# explained below.

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
# and such a sum grows like $\sqrt{d_k}$: with the paper's $d_k = 64$ the scores are about 8 in size. A softmax of 8, 0
# and -8 is (0.9997, 0.0003, 0.0000), nearly all for one word; divided by 8 it is (0.67, 0.24, 0.09). The paper suspects
# that a softmax so sharp learns badly. Our models do learn far worse without the division, though the reason is less
# clear ([3.2](3_2_attention.ipynb) tests it). If we stack the queries of all words into one matrix $Q$, and likewise
# $K$ and $V$, we have the first equation of the paper:
#
# $$ \operatorname{Attention}(Q, K, V) = \operatorname{softmax}\!\left( \frac{Q K^T}{\sqrt{d_k}} \right) V. $$
#
# The map uses this one operation in three places. In the encoder (box 4) English words look at English words, and in
# the decoder (box 9) German words look at German words: a sentence that looks at itself is called **self-attention**.
# In box 10, **encoder-decoder attention** or **cross-attention**, the two languages meet. The queries come from the
# German words, the keys and values from the memory. Each German position asks: which English words do I need for the
# word I am about to write?
#
# Does a trained model really look at what it translates? We give ours a pair (*einen roten Schirm* is *a red umbrella*)
# and record box 10 in its last layer (there are several layers, and several looks in each, as we shall see). A row is
# named after the token about to be written; its query comes from the token before.

# %%
from annotated_transformer.extras.attention_views.record import record_attention

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
from lab.attention_map import plot_attention
from lab.display import use_style

use_style()
figure, ax = plt.subplots(figsize=(4.6, 3.9), layout="constrained")
plot_attention(looks, german, english, ax=ax)
ax.set(xlabel="key: English token", ylabel="query: before writing this token")
figure.colorbar(ax.images[0], ax=ax, label="attention weight")
plt.show()

# %% [markdown]
# The rows of *hat* and *gekauft*, far apart in German, both look at *bought*. Nobody told the model which word belongs
# to which: it worked this out while learning to predict the next token. But this is one sentence and one layer; [chapter
# 7](7_attention_visualizations.ipynb) asks how far such maps explain a model.

# %% [markdown]
# (oh-heads)=
# ## Eight looks at once
#
# One look gives one mixture. But a word has several questions at a time: who did it, what was bought, which word comes
# before me? So the model looks eight times in parallel. We multiply as before and get 512 numbers for the query, the
# key and the value of a word. Then we cut each of the three into $h = 8$ pieces of $d_k = 64$ numbers. Piece 1 of the
# query meets piece 1 of the keys, and so on: eight **heads**, each with a softmax and a pattern of its own.

# %% tags=["remove-input"] mystnb={"image": {"alt": "Read from below. A bar of 512 numbers for the queries, keys and values of a word is cut into eight coloured pieces of 64. Each piece goes into its own small attention map of three by three words, and every map has a different pattern. The eight results of 64 numbers are joined to 512 and multiplied by the matrix W O."}, "figure": {"caption": "512 = 8 × 64: cut, look eight times, join. The bar stands for queries, keys and values alike. Each small square is a head's map of three words looking at three; the patterns are invented.", "name": "fig-oh-heads"}}
SVG(filename="figures/heads.svg")

# %% [markdown]
# The eight results, 64 numbers each, are joined to 512 again, and a fourth matrix $W^O$ mixes them. The cost is about
# that of one look with all 512 numbers, because we only cut what was there. Our own model has four heads in a layer.
# Here is where each looks, in the first layer, from the article *a* and from the noun:

# %%
with torch.no_grad(), record_attention(translator.model) as recorded:
    translator.model.encode(source)
four = recorded["encoder.layers.0.self_attention"][0]
for head, weights in enumerate(four, 1):
    seen = [f"{english[i]} at {english[weights[i].argmax()]} {weights[i].max():.2f}"
            for i in (english.index("▁a"), english.index("▁umbrella"))]
    print(f"head {head}:  " + "   ".join(seen))

# %% tags=["hide-input"] mystnb={"image": {"alt": "Four heat maps side by side, one for each head of the encoder's first layer: the tokens of She bought a red umbrella look at each other. The four patterns differ: one head looks at the token before, one at the token itself, one at the token after it, and one has no such diagonal."}, "figure": {"caption": "The four heads of the trained encoder's first layer. Rows look at columns.", "name": "fig-oh-four-heads"}}
figure, axes = plt.subplots(1, 4, figsize=(7, 2.4), layout="constrained", sharey=True)
for head, (ax, weights) in enumerate(zip(axes, four), 1):
    plot_attention(weights, english, english, ax=ax, title=f"head {head}")
    ax.set(ylabel="")
assert len({tuple(weights.argmax(dim=-1).tolist()) for weights in four}) > 1
plt.show()

# %% [markdown]
# The heads differ, and weight that has nowhere to go often lies on the end token.

# %% [markdown]
# (oh-masks)=
# ## No peeking and no padding
#
# **Padding.** We train on many sentences at once, in one table of token numbers with a sentence per row. Short sentences
# are filled up with a padding token, and a real word that looked at it would pick up rubbish. (Padding positions look
# too, but nobody reads the result.)
#
# **Peeking.** In training we show the decoder the whole German sentence and ask, at every position, for the next word.
# It reads *start Sie hat es* and is asked for *Sie hat es gekauft*. Position 2 reads *hat* and must answer *es*, and
# *es* is what it could read at position 3. If it could look there, it would copy and learn nothing. So each position
# may look at itself and at earlier ones.

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
# We stretch 512 numbers to 2,048, set the negative ones to zero (a ReLU), and come back to 512, with the same two
# matrices at every position. You can think of each of the 2,048 numbers as a detector: it lights up if the word's
# vector shows a certain pattern, and its row of $W_2$ is then added to the result, scaled by how brightly it lights.
# This one answers only if both numbers are there. Without the ReLU the two matrices would be one, and no "and" could be
# computed:

# %%
x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])            # three words
W_1, b_1 = torch.tensor([[1.0], [1.0]]), -1.0                     # one detector
print("it lights up by", (x @ W_1 + b_1).relu().flatten().tolist())

# %% tags=["remove-input"] mystnb={"image": {"alt": "Three columns for the words She, bought and it, each read from below: a short bar of 512 numbers, the matrix W 1 and a ReLU, a bar four times as wide of 2,048 numbers in which some cells are zero, the matrix W 2, and a short bar of 512 numbers. The matrices of all columns are the same; no arrow joins two columns."}, "figure": {"caption": "512 to 2,048 to 512, with the same matrices at each position. White cells are zero after the ReLU.", "name": "fig-oh-ffn"}}
SVG(filename="figures/wide_and_back.svg")

# %% [markdown]
# More width means more detectors. Two thirds of an encoder layer's parameters are here. [3.3](3_3_feed_forward.ipynb) prints what excites ours.

# %% [markdown]
# (oh-where)=
# ## Where am I?
#
# A weighted mean does not depend on the order of its terms, so each word gets the same answer in *She bought it* and in
# *it bought She*. Box 3 therefore adds a vector to each embedding that says: you are word number 0, 1, 2, and so on.
#
# A clock shows how. Its hands turn at different speeds, and their angles together tell the time. The paper gives every
# position 256 hands. The fastest turns by one radian per word; the slowest needs 60,611 words for a full turn, so no two
# positions of a text look alike. A hand is stored as two numbers, its sine and cosine, with $pos$ the word's number and
# $i$ the hand's, 0 to 255:
#
# $$ PE_{(pos,\,2i)} = \sin\frac{pos}{10000^{2i/d_{\text{model}}}}, \qquad
# PE_{(pos,\,2i+1)} = \cos\frac{pos}{10000^{2i/d_{\text{model}}}}. $$

# %% tags=["remove-input"] mystnb={"image": {"alt": "A table of clock faces: five columns for positions 0 to 4 with the words start, Sie, hat, es, gekauft, four rows for four pairs of numbers. In the first row the hand turns by one radian per position, in the second by a half, in the third by a fifth, in the fourth by a twentieth. No two columns show the same hands."}, "figure": {"caption": "Four hands at five positions, with speeds like the paper's. The hands of a column are the position's vector; each row turns at its own speed.", "name": "fig-oh-clock"}}
SVG(filename="figures/clock_hands.svg")

# %% [markdown]
# Why clocks? Going three words further turns hand $i$ by the same angle wherever we start. So a head can ask for *the
# word three back*, from anywhere, by a fixed matrix $W^Q$ that turns every hand of the query back by three words. We do
# it for word 9, and take the dot products with words 0 to 12:

# %%
speeds = 1 / 10000 ** (torch.arange(0, 512, 2) / 512)
def hands(word):
    angle = torch.as_tensor(word)[..., None] * speeds
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)

turned_back = hands(9 - 3)
print((hands(torch.arange(13)) @ turned_back).int().tolist())

# %% [markdown]
# The largest, 256, belongs to word 6. The authors hoped that such heads would be easy to learn. Before the position is
# added, the embedding is multiplied by $\sqrt{512}$. A row of $E$ starts with a length of about 1, since $E$ also serves
# as box 11, and a position has length 16; times $\sqrt{512}$ the row has 22.6, so that the word is about as loud as its
# place. (So we read it; the paper gives no reason.)

# %% [markdown]
# (oh-norm)=
# ## Add and norm
#
# Every attention block and every feed-forward network sits in the same frame (box 5), with *Sublayer* for either:
#
# $$ \operatorname{LayerNorm}(x + \operatorname{Sublayer}(x)). $$
#
# **Add.** The sub-layer's output is added to its input, which comes along the arrow around the box, the **residual
# connection**. So a sub-layer only has to learn what to *change*, and a word is still recognisable after many layers.
# The sum also gives the gradient a direct way back to the lower layers.
#
# **Norm.** For each word we subtract the mean of its 512 numbers and divide by their standard deviation. (Learned
# numbers, 1 and 0 at the start, may then rescale and shift.) So the numbers stay near 1 in size, through all layers.

# %%
x, output = torch.tensor([1.0, 2.0, -1.0, 0.0]), torch.tensor([0.5, -1.0, 1.0, 1.5])
total = x + output
normed = (total - total.mean()) / total.std(correction=0)
print("sum", total.tolist(), "  normed", [f"{number:.2f}" for number in normed.tolist()])

# %% tags=["remove-input"] mystnb={"image": {"alt": "Read from below. The vector x, (1, 2, -1, 0), takes two ways: straight up, and through a sub-layer, which answers (0.5, -1, 1, 1.5). The two meet in a plus sign, (1.5, 1, 0, 1.5). A LayerNorm subtracts the mean and divides by the standard deviation: (0.82, 0.00, -1.63, 0.82)."}, "figure": {"caption": "Add, then norm, on four numbers: the arrow on the left is the residual connection.", "name": "fig-oh-norm"}}
SVG(filename="figures/sum_and_norm.svg")

# %% [markdown]
# In training, **dropout** sets a random tenth of the sub-layer's output to zero before the sum, and of embedding plus
# position, so that the model relies on no single number.

# %% [markdown]
# (oh-word)=
# ## From a vector to a word
#
# At the top of the decoder we have one vector of 512 numbers for each German position, and we want a word. Box 11,
# *linear*, compares the vector with every row of the table $E$ by a dot product, which gives one score per token of the
# vocabulary. Box 12, *softmax*, turns the scores into probabilities. English and German share one
# vocabulary, so this is the same table that both embeddings read, the dashed line of the map. The model says a word by
# making a vector that points in the direction of this word's row. Two moments, before the first word and after *Sie*:

# %%
source = torch.tensor([[*ids("She bought it."), END]])
so_far = torch.tensor([[START, *ids("Sie")]])
with torch.no_grad():
    probabilities = translator.model(source, so_far)[0].softmax(dim=-1)
for words, row in zip(("start", "start Sie"), probabilities):
    top = row.topk(3)
    tokens = "  ".join(f"{token} {p:.3f}" for token, p in zip(
        tokenizer.pieces(top.indices.tolist()), top.values))
    print(f"{words:10}{tokens}   the other {len(row) - 3:,}: {1 - top.values.sum():.3f}")

# %% [markdown]
# Type a sentence of your own, and choose tokens yourself:
#
# ```{translator} tokens
# :text: She bought it.
# ```
#
# After *Sie* there are two good ways to go on, *hat ... gekauft* and *kaufte*, both correct German, and the model
# divides its probability between them.
#
# (oh-listing)=
# ## All of it in 80 lines
#
# Now we have every box and can put the machine together. An encoder **layer** is attention and a feed-forward network,
# each in its frame, and a decoder layer has the attention over the memory between the two. We stack $N = 6$ layers on
# each side (box 7), each with weights of its own: what one layer has gathered for a word, the next can combine further
# ([3.1](3_1_stacks.ipynb) measures what each adds). The top of the encoder's stack is the memory, the same for every
# decoder layer.
#
# Here is the complete model in the paper's notation and sizes. Chapters 3.1 to 3.5 take it apart class by class. Retype
# it one day: half an hour, and the best exercise in the book. In the first class `unflatten` cuts the 512 numbers into
# heads and `flatten` joins them. Each attention takes its mask as an argument; the source's has the shape $B \times 1
# \times 1 \times S$, for $B$ sentences of length $S$, the same for all heads and queries. `memory` is what is looked at:
# the encoder's output in box 10, `x` itself in boxes 4 and 9. In `embed`, sines and cosines alternate.

# %%
from lab import listing
from lab.display import show

show(listing)

# %% [markdown]
# Let us follow two sentences of 7 tokens, and their targets of 5, through `forward`:

# %%
from lab.listing import Transformer

base = Transformer(37_000)
source, target = torch.randint(3, 37_000, (2, 7)), torch.randint(3, 37_000, (2, 5))
x = base.embed(source)
attention = base.encoder[0].self_attention
heads_of_x = attention.W_Q(x).unflatten(-1, (8, -1)).transpose(1, 2)
shapes = {"source": source, "embedded, and after any layer": x,
          "queries of 8 heads": heads_of_x, "weights": heads_of_x @ heads_of_x.mT,
          "scores": base(source, target)}
for name, tensor in shapes.items():
    print(f"{name:30}", " x ".join(map(str, tensor.shape)))
print(f"{sum(p.numel() for p in base.parameters()):,} parameters")

# %% [markdown]
# (The paper prints 65 million; [3.1](3_1_stacks.ipynb) says why.) Is our program right? We give it the weights of the
# book's trained model, and compare the scores of both for one pair of sentences, with some padding.

# %%
from lab.same import equal, listing_of

source = torch.tensor([[*ids("She bought it."), END, PAD, PAD]])
target = torch.tensor([[START, *ids("Sie hat es gekauft.")]])
model = listing_of(translator.model)
with torch.no_grad():
    print(equal(model(source, target), translator.model(source, target)))

# %% [markdown]
# (oh-learns)=
# ## It learns
#
# The question is the English sentence and the German words so far; the answer is the next German token. One pair of
# sentences contains many such questions. We feed the decoder the German
# sentence **shifted right** by one place (box 8), with the start token in front and without the last token, and it
# answers at all positions at once. The triangle of box 9 keeps it honest, and padding positions are left out of the
# loss. The inputs are always the right words, whatever the model would have said; this is called **teacher forcing**.

# %% tags=["remove-input"] mystnb={"image": {"alt": "Two panels. Above, training: the decoder's inputs are start, Sie, hat, es, gekauft, all from the reference, and at each of the five positions it must give the next token: Sie, hat, es, gekauft, end; all five are computed at once. Below, writing: the inputs are start and then what the model itself has written; an arrow leads from each output to the next input, and lines lead from all earlier inputs into each step, one step per token."}, "figure": {"caption": "Above, training: the words of the human translation are given (green), and all answers (orange) are computed at once. Below, writing: one step per word; each step reads all words so far, and its last answer becomes the next input.", "name": "fig-oh-shifted"}}
SVG(filename="figures/shifted.svg")

# %% [markdown]
# The **loss** at a position is minus the logarithm of the probability that the model gave to the right token: 0 if it
# was sure, large if it was surprised (`cross_entropy` applies the softmax and averages). We lower it by gradient steps
# with Adam, which gives each weight a step size of its own, at the paper's settings. Let us teach a small, untrained
# model built from our listing one pair by heart.

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
pupil = Transformer(config.vocab_size, N=2, d_model=64, d_ff=256, h=4, p_drop=0.0)
adam = torch.optim.Adam(pupil.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9)
source = torch.tensor([[*ids("She bought it."), END]])
target = torch.tensor([[START, *ids("Sie hat es gekauft."), END]])
for step in range(41):
    scores = pupil(source, target[:, :-1])                         # given: START Sie ...
    loss = torch.nn.functional.cross_entropy(scores[0], target[0, 1:])   # asked: Sie hat ... END
    if step % 10 == 0:
        print(f"step {step:2d}  loss {loss.item():.2f}")
    adam.zero_grad()
    loss.backward()
    adam.step()

# %% tags=["remove-cell"]
assert loss < 0.5

# %% [markdown]
# Real training is the same loop with more data, and three refinements. The loss asks for 0.9 on the right token and
# spreads 0.1 over the whole vocabulary, so that the model is never too sure: **label smoothing**. The learning rate,
# $512^{-0.5}\min(step^{-0.5},\; step \cdot 4000^{-1.5})$, rises to 0.0007 during a **warm-up** of 4,000 steps, since
# large steps with random weights can do harm, and then falls (below, left). And batches hold sentences of similar
# length, so that little is padding. On the right is the first of three stages in which our model was trained. BLEU, from
# 0 to 100, counts the words, pairs, triples and quadruples that a translation shares with a human one; scores on
# different texts cannot be compared.

# %% tags=["hide-input"]
import json
from pathlib import Path
from annotated_transformer import noam_learning_rate

record = json.loads(Path("results/visitors.json").read_text())["records"][0]
log = record["stages"][0]["validation_log"]
for entry in (log[0], log[-1]):
    print(f"step {entry['step']:6,}  loss {entry['valid_nll']:.2f}  "
          f"BLEU {entry['valid_bleu']:.1f}")
assert log[-1]["valid_nll"] < log[0]["valid_nll"]

# %% tags=["hide-input"] mystnb={"image": {"alt": "Two charts. Left: the learning rate rises in a straight line for 4,000 steps and then falls in a slowing curve. Right: the loss of the book's model on unseen sentence pairs falls fast at first and then ever more slowly."}, "figure": {"caption": "Left: the paper's learning rate for its base model. Right: the first of the three stages of the book's model's training, scored on sentence pairs that it was never trained on.", "name": "fig-oh-curves"}}
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
# probabilities that leave box 12, append it to the input of box 8, and ask again, until the answer is the end token. Each time
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
# Greedy search cannot take back a choice. *Sie hat ...* and *Sie kaufte ...* are both good beginnings, and only later
# does it turn out which one ends better. **Beam search**, which `translate` used at the start of this hour, extends each
# of the four best beginnings at every step and keeps the best four results; a finished sentence keeps its place among
# the four. The probability of a sentence is a product, so we add logarithms; the *score* also takes account of the
# length ([6.1](6_1_translation.ipynb)).

# %%
from annotated_transformer import beam_search

source = torch.tensor([[*ids("She bought it."), END]])
found = beam_search(translator.search_model, source, beam_size=4, n_best=4)[0]
for hypothesis in found:
    print(f"score {hypothesis.score:6.2f}  log P {hypothesis.log_p:6.2f}  "
          f"{tokenizer.decode(hypothesis.tokens)}")

# %% tags=["hide-input"] mystnb={"image": {"alt": "A tree from left to right. From the start token one branch goes to the first German word and forks into several beginnings; each box has a token and its probability, and at the end of each of four branches stands the score of the whole sentence."}, "figure": {"caption": "The four sentences that a beam of four has found for *She bought it*, as a tree. In a box: the token and its probability after what stands left of it. On the right, bold: the score. Beginnings that were dropped are not drawn.", "name": "fig-oh-beam"}}
from lab.beam_tree import plot_beam

figure, ax = plt.subplots(figsize=(6.0, 3.0), layout="constrained")
plot_beam(found, translator, source, ax)
plt.show()

# %% [markdown]
# ## Why it won
#
# In 2016 the best translation systems were recurrent networks, which keep one state vector and update it by matrices at
# each word. What attention changed most is the *order* of the work. The recurrent network must finish word 0 before it
# can begin word 1, while attention computes all pairs together, in one large matrix product, which is what GPUs are good
# at. And a word reaches any other in a single step, so that links between distant words can be learned.
#
# What does it cost? We count the multiplications of one layer for $n$ words with vectors of $d$ numbers. Attention has
# four matrices and two products of all pairs; a plain recurrent layer has two matrices, an LSTM eight.

# %%
d = 512
for n in (30, 512, 4000):
    layers = {"attention": 4 * n * d * d + 2 * n * n * d,
              "recurrent": 2 * n * d * d, "LSTM": 8 * n * d * d}
    print(f"n = {n:5,}:", "   ".join(
        f"{name} {count / 1e6:7,.0f} million" for name, count in layers.items()))

# %% [markdown]
# So for sentences attention does half the work of an LSTM; for long texts the term $n^2 d$, which is all that the
# paper's Table 1 counts, takes over ([chapter 4](4_why_self_attention.ipynb)).

# %% tags=["remove-input"] mystnb={"image": {"alt": "Two rows of eight circles for eight words. Above, a recurrent network: arrows lead from each circle to the next, so that seven arrows join the first to the last. Below, attention: arcs lead from the last circle directly to every other one; the arc to the first is drawn thick."}, "figure": {"caption": "From the first word to the last of eight: a signal takes seven steps in a recurrent network, and one look in attention.", "name": "fig-oh-paths"}}
SVG(filename="figures/paths.svg")

# %% [markdown]
# The paper's larger model (213 million parameters, the base model 65) reached 28.4 BLEU from English to German on the
# news texts of 2014, 2 more than any system before it, after three and a half days on eight GPUs. Then its two halves went separate ways. The encoder alone became BERT {cite}`devlin2019bert`, a
# reader; the decoder alone became GPT {cite}`radford2018improving`, a writer, the ancestor of the language models that
# you talk to today. With patches of an image for words the same stack can see {cite}`dosovitskiy2021image`, with slices
# of sound it can hear {cite}`radford2023robust`. The boxes have changed remarkably little; [After the paper](after_the_paper.ipynb) says which did.

# %% [markdown]
# ## Three questions to test yourself

# %% [markdown] tags=["exercise"]
# ```{exercise} Three matrices
# :label: exercise-oh-qkv
#
# In box 10, which of $Q$, $K$ and $V$ are made from the English words, and which from the German ones? What is the shape of
# $Q K^T$ for 5 German and 7 English tokens?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} exercise-oh-qkv
# :class: dropdown
#
# $K$ and $V$ come from the memory, which is English; $Q$ comes from the German words written so far. Each of the 5 queries meets
# 7 keys, so $Q K^T$ has 5 rows and 7 columns in every head.
# ```

# %% [markdown] tags=["exercise"]
# ```{exercise} Without the triangle
# :label: exercise-oh-mask
#
# You forget the causal mask. What happens to the loss in training, and what happens when the model writes?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} exercise-oh-mask
# :class: dropdown
#
# The loss falls close to zero, because each position can read its answer one place to the right. When the model writes, that
# place is empty, and the output is worthless.
# ```

# %% [markdown] tags=["exercise"]
# ```{exercise} Which box?
# :label: exercise-oh-boxes
#
# Name the box that moves information between words, the box that tells *She bought it* from *it bought She*, and the box
# with the most parameters in an encoder layer.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} exercise-oh-boxes
# :class: dropdown
#
# Attention (4, and likewise 9 and 10) moves information; positional encoding (3) gives the order; the feed-forward network (6) has two
# thirds of the layer's parameters.
# ```

# %% [markdown]
# ```{dropdown} Where this is
# The program is `book/lab/listing.py`; a test holds its scores and gradients to those of `annotated_transformer.model`.
# ```
#
# You now know every box. [3.2](3_2_attention.ipynb) takes the heart of the machine apart, and the map leads to the rest.
