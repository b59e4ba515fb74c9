# %% [markdown]
# # 7 Attention visualizations
#
# *The paper's appendix {cite}`vaswani2017attention`: Figures 3, 4 and 5 on a model of our own, a view of every head to
# play with, and how far such pictures can be trusted.*
#
# Section 4 of the paper ends with a promise: "As side benefit, self-attention could yield more interpretable models."
# Its evidence is the three figures of the appendix. They are the best known pictures of the Transformer, and the most
# often over-read. When you have read this chapter you can
#
# - record the weights of every head, and say which axis is which;
# - find a head that does what Figure 3 or 4 shows, and tell whether finding it means anything;
# - describe a head by numbers: how sharp it is, how far it looks, where it rests;
# - remove a head and measure what the model loses;
# - build a language in which it is known what a head should look at, and measure the three figures on it;
# - say why a weight is not an explanation, and what the literature knows about it.
#
# You need [3.2 Attention](3_2_attention.ipynb), above all the multi-head equation. The paper's section 7 is its
# conclusion, which says in a few lines what the model is (the first sequence transduction model made of attention
# alone), what it reached, and what comes next: other kinds of input and output, attention restricted to a
# neighbourhood, and generation that is less sequential. [After the paper](after_the_paper.ipynb) tells what came of
# that.

# %%
import math
import textwrap

import matplotlib.pyplot as plt
import torch
from torch.testing import assert_close

from annotated_transformer import load_model, make_batch, perplexity, record_attention
from annotated_transformer.experiments.figures_3_to_5.knock_out import mcnemar
from annotated_transformer.looking.explorer import explore_attention
from annotated_transformer.looking.inspection import knocked_out
from annotated_transformer.looking.visualization import HEAT_MAP, PALETTE, plot_attention, show, use_style

use_style()

# %% [markdown]
# ## What the paper shows
#
# All three figures show encoder self-attention in layer 5 of 6. The tokens stand twice, and lines between them are
# the weights: the darker the line, the larger the weight. One colour is one head.
#
# | figure | sentence | what the paper says of it |
# |---|---|---|
# | 3 | *It is in this spirit that a majority of American governments have passed new laws since 2009 making the registration or voting process more difficult.* | "Many of the attention heads attend to a distant dependency of the verb 'making', completing the phrase 'making...more difficult'." Only the lines of *making* are drawn. |
# | 4 | *The Law will never be perfect, but its application should be just - this is what we are missing, in my opinion.* | "Two attention heads, [...] apparently involved in anaphora resolution." Heads 5 and 6, and the lines of *its*: "the attentions are very sharp for this word". |
# | 5 | the same | "Many of the attention heads exhibit behaviour that seems related to the structure of the sentence." Two heads. |
#
# **Anaphora** is the use of a word that refers back to another; here *its* stands for *the Law's*. Note the words
# "apparently" and "seems": the captions claim less than most retellings do. They also leave open which of the paper's
# models was drawn, how the heads and sentences were chosen, and in how many other sentences the same heads do the same.
#
# We put the same questions to the model in `book/model`: the paper's architecture with $N = 3$ layers and $h = 6$
# heads, trained on some 36,000 pairs of everyday sentences, English to German, as [6.1](6_1_translation.ipynb) tells.
# The paper's model for this pair of languages had twice the layers and 4.5 million pairs, most of them from parliament,
# the web and the news. So it is an open question what ours has learned.

# %%
model, tokenizer = load_model("model")
N, h = model.config.N, model.config.h
assert (N, h, model.config.d_v) == (3, 6, 32)

SPIRIT = ("It is in this spirit that a majority of American governments have passed new laws since 2009 "
          "making the registration or voting process more difficult.")
LAW = ("The Law will never be perfect, but its application should be just "
       "- this is what we are missing, in my opinion.")
print(textwrap.fill(" ".join(tokenizer.pieces(tokenizer.encode(SPIRIT))), 80))

# %% [markdown]
# With a vocabulary of 3,500, such a sentence falls to pieces: rare words are cut into syllables and letters (▁ marks
# a space). A weight belongs to a *token*, so a word's weight is a sum over its pieces. The longest words cost the
# paper's model the same trouble; its vocabulary is ten times as large, so it happens less.
#
# And what does our model make of the two sentences?

# %% tags=["nbval-ignore-output"]
from annotated_transformer import Translator

translations = Translator(model, tokenizer).translate([SPIRIT, LAW])
assert all(translations)
print(*(textwrap.fill(translation, 80) for translation in translations), sep="\n")

# %% [markdown]
# Whoever reads German sees that these sentences are beyond it: neither translation says what its sentence says. Keep
# that in mind for every picture below: a weight in
# a model that does not understand a sentence is still a weight, and still makes a pretty picture.

# %% [markdown]
# ## To record, and to read
#
# **Question.** Where do the numbers in such a picture come from, and which way round are they?
#
# **Equation.** For one head, with queries from $x$ and keys from $m$ (for self-attention, $m = x$):
#
# $$
# A = \mathrm{softmax}\left(\frac{(x\,W^Q)(m\,W^K)^\top}{\sqrt{d_k}}\right),
# \qquad
# \sum_j A_{ij} = 1
# $$ (viz-weights)
#
# $A_{ij}$ is the share that query $i$ gives to key $j$. Queries are rows, keys are columns, and *rows* sum to 1.
#
# **Code.** The model's fused attention kernel never hands out $A$. `record_attention` looks over its shoulder: before
# each attention module runs, it computes equation {eq}`viz-weights` from the very inputs that the module is about to
# get. Nothing is kept on the model, and nothing about the model's output changes.

# %%
show(record_attention)

# %% [markdown]
# **Check.** One forward pass over a sentence and its translation. There is one entry for each attention module: $N$
# in the encoder, $2N$ in the decoder. Every row is a distribution. And the weights are those that the model used:
# weights times values, joined and multiplied by $W^O$, are what the module puts out (the cell takes the encoder's
# layer 2; the tests take every module).

# %%
source_text, target_text = "Tom sold his car because it was old.", "Tom verkaufte sein Auto, weil es alt war."
source = torch.tensor([[*tokenizer.encode(source_text), model.config.eos_id]])
target_in = torch.tensor([[model.config.bos_id, *tokenizer.encode(target_text)]])
outputs = {}
hook = model.encoder.layers[1].self_attention.register_forward_hook(
    lambda module, inputs, output: outputs.update(x=inputs[0], output=output))
with record_attention(model) as weights, torch.inference_mode():
    model(source, target_in)
hook.remove()
print(*(f"{name:35s} {tuple(A.shape)}" for name, A in weights.items()), sep="\n")

# %%
assert len(weights) == 3 * N
for A in weights.values():
    assert_close(A.sum(-1), torch.ones(A.shape[:-1]))
attention = model.encoder.layers[1].self_attention
with torch.inference_mode():
    _, values = attention.keys_and_values(outputs["x"])
    joined = (weights["encoder.layers.1.self_attention"] @ values).transpose(1, 2).flatten(-2)
    assert_close(attention.W_O(joined), outputs["output"])

# %% [markdown]
# **Break it.** Swap the axes. It is an easy mistake, since a heat map has no arrow on it: published notebooks draw
# the keys down the side and the queries along the bottom, or call the rows "attended to". In decoder self-attention
# the mask gives it away: the empty triangle must lie *above* the diagonal, because a row (query) may not look at
# later columns (keys). In the encoder nothing looks wrong. The sums tell: those of $A$'s rows are all 1, those of its
# columns are not.

# %%
decoder_A = weights["decoder.layers.0.self_attention"][0, 0]
encoder_A = weights["encoder.layers.1.self_attention"][0, 0]
assert (decoder_A.triu(1) == 0).all() and (decoder_A.T.triu(1) > 0).any()
assert_close(encoder_A.sum(dim=1), torch.ones(len(encoder_A)))
assert (encoder_A.sum(dim=0) - 1).abs().max() > 0.05

# %% [markdown]
# A column's sum has a meaning of its own: how much attention a key gets from all queries together. A token may get
# none at all, or several times its share.
#
# **Where.**
#
# - Code: `record_attention` and `plot_attention` in `annotated_transformer/looking/visualization.py`.
# - Tests: `test_the_weights_rebuild_each_modules_output`, `test_keys_lie_on_the_x_axis_and_queries_on_the_y_axis` in
#   `tests/looking/test_visualization.py`.
# - Exercises: {ref}`ex-viz-shapes`, {ref}`ex-viz-axes`.

# %% [markdown]
# (section-viz-explorer)=
# ## Every head, to play with
#
# **Question.** The model has $3 \cdot 3 \cdot 6 = 54$ heads, and the paper shows a handful. What do the others do?
#
# **Code.** `explore_attention` records all of them and makes a small page within the page. Choose an attention, a
# layer and a head; point at a query, and the lines and numbers show where it looks. With the keyboard: Tab goes from
# control to control and then to the queries; there, the arrows up and down choose the query, left and right the head.
# The sentence below the lines says in words what is drawn, and the button shows the same head as a table.

# %% tags=["nbval-ignore-output"]
explorer = explore_attention(model, tokenizer, source_text, target_text, kinds=["cross", "encoder", "decoder"], layer=3)
explorer

# %% [markdown]
# Without JavaScript, and on paper, you see a table of one head in its place.
#
# **Check.** What it shows is what was recorded, layer by layer.

# %%
for maps, name in zip(explorer.maps, ("decoder.layers.{}.cross_attention", "encoder.layers.{}.self_attention",
                                      "decoder.layers.{}.self_attention")):
    assert maps.weights.shape[:2] == (N, h)
    for layer in range(N):
        assert torch.equal(maps.weights[layer], weights[name.format(layer)][0])

# %% [markdown]
# Take a few minutes for it before you read on. Is there a head that looks at one neighbour of each token? One that
# looks at the end of the sentence, `</s>`, whatever the query is? Which heads of the encoder-decoder attention join
# *es* and *it*? Then ask of each find: would I have noticed if it were not there?
#
# **Where.**
#
# - Code: `explore_attention` in `annotated_transformer/looking/explorer.py`. In a notebook of your own, it takes any model of
#   this package, and your sentence.
# - Tests: `tests/looking/test_explorer.py`, which works it by keyboard in a browser.

# %% [markdown]
# ## Figure 3: a distant dependency
#
# **Question.** Does any head of our model connect *making* with *more difficult*?
#
# The paper draws one query, *making*, and all heads of a layer. The same picture as a matrix: a row for each head, a
# column for each key. A word may be several tokens. Let us write down once how to find them.

# %%
def positions(pieces, word):
    """Where the tokens of `word` stand: a run of pieces that starts with a space and spells it."""
    for start in range(len(pieces)):
        for end in range(start + 1, len(pieces) + 1):
            if "".join(pieces[start:end]) == "▁" + word:
                return list(range(start, end))
    raise ValueError(f"{word} is not in the sentence")

def share(maps, query, keys):
    """(N, h): the weight that the tokens of one word give, on average, to the tokens of other words together."""
    columns = [j for word in keys for j in positions(maps.keys, word)]
    return maps.weights[:, :, positions(maps.queries, query)][..., columns].sum(-1).mean(-1)

# %%
assert positions(["▁a", "▁m", "ak", "ing", "."], "making") == [1, 2, 3]
spirit = explore_attention(model, tokenizer, SPIRIT, kinds=["encoder"]).maps[0]
law = explore_attention(model, tokenizer, LAW, kinds=["encoder"]).maps[0]
assert len(spirit.keys) == 49 and len(law.keys) == 32

# %% mystnb={"image": {"alt": "Heat map with a row for each of 18 encoder heads and a column for each of the 49 tokens of the sentence of Figure 3, for the query making. The columns of more and difficult, near the right end, are marked."}, "figure": {"caption": "The sentence of the paper's Figure 3 in our encoder: where the tokens of *making* look, on average, in each head (layer.head). The two marked columns are *more difficult*.", "name": "fig-viz-spirit"}} tags=["row-F3"]
def plot_query(maps, query, marked):
    """One query word: heads down, keys across, the marked words in bold."""
    rows = maps.weights[:, :, positions(maps.queries, query)].mean(2).flatten(0, 1)
    assert_close(rows.sum(-1), torch.ones(N * h))
    names = [f"{layer}.{head}" for layer in range(1, N + 1) for head in range(1, h + 1)]
    ax = plt.subplots(figsize=(0.12 * len(maps.keys) + 1.5, 3.6), layout="constrained")[1]
    plot_attention(rows, names, maps.keys, ax=ax, title=f"query: {query}")
    ax.set_ylabel("layer.head")
    ax.tick_params(labelsize=6)
    for j in [j for word in marked for j in positions(maps.keys, word)]:
        ax.get_xticklabels()[j].set(weight="bold", color=PALETTE[1])

plot_query(spirit, "making", ["more", "difficult"])
assert share(spirit, "making", ["more", "difficult"]).max() > 2 / len(spirit.keys)  # two of 49 tokens
plt.show()

# %% [markdown]
# Now the numbers. If a head spread its attention evenly, *more difficult* would get 2 tokens' share out of 49. We
# take the head with the largest share.

# %% tags=["nbval-ignore-output"]
found = share(spirit, "making", ["more", "difficult"])
even = 2 / len(spirit.keys)
best = found.max().item()
layer, head = divmod(found.argmax().item(), h)
print(f"largest share: {best:.3f}, layer {layer + 1}, head {head + 1}; an even spread would give {even:.3f}")
assert found.shape == (N, h) and best > even

# %% [markdown]
# Here an anecdote would end: "a head has learned the dependency". But we *searched* for that head, among 18. The
# largest of 18 numbers is large also where there is nothing to find. So we do the same search where nobody asked for
# grammar: every token as the query, every two neighbouring tokens as the keys, as long as they are at least as far
# away, in either direction, as *more* is from *making*.

# %% tags=["nbval-ignore-output"]
distance = positions(spirit.keys, "more")[0] - positions(spirit.keys, "making")[-1]
L = len(spirit.keys) - 1  # without the end of the sentence
control = torch.stack([spirit.weights[:, :, i, j:j + 2].sum(-1).max()
                       for i in range(L) for j in range(L - 1) if abs(j - i) >= distance])
as_large = (control >= best).double().mean().item()
print(f"{len(control):,} pairs of a query and two distant keys; the best head reaches {best:.3f} in {as_large:.1%}")
assert distance >= 10 and control.median() > 0 and 0 <= as_large <= 1

# %% [markdown]
# This percentage is what the picture of one sentence is worth. Were it below one percent, the head would deserve a
# second look, on other sentences with the same construction. At ten percent or more, the find is what a search turns
# up anyway. (The control is a little strict: *making* is a mean over its tokens, and a single token's weights are
# more uneven than a mean.) The paper gives no such control, for these heads or others. It may well be that in its
# model the effect is real; the figure alone cannot show it.
#
# A search needs a control: the same search where the thing searched for is absent. This holds for every "head that
# does X". [Further down](section-viz-controlled) stands a better one: many sentences in which we know the answer.

# %% [markdown]
# ## Figure 4: what a pronoun refers to
#
# **Question.** Does *its* look at *Law*?

# %% mystnb={"image": {"alt": "Heat map with a row for each of 18 encoder heads and a column for each of the 32 tokens of the sentence of Figure 4, for the query its. The columns of Law and application are marked."}, "figure": {"caption": "The sentence of the paper's Figures 4 and 5 in our encoder: where *its* looks. Marked are *Law*, which it refers to, and *application*, which it belongs to.", "name": "fig-viz-law"}} tags=["row-F4"]
plot_query(law, "its", ["Law", "application"])
plt.show()
for word in ("Law", "application"):  # some head looks there more than twice as much as even weights would
    assert share(law, "its", [word]).max() > 2 * len(positions(law.keys, word)) / len(law.keys)

# %% tags=["nbval-ignore-output"]
for word in ("Law", "application"):
    found = share(law, "its", [word])
    layer, head = divmod(found.argmax().item(), h)
    even = len(positions(law.keys, word)) / len(law.keys)
    print(f"its -> {word:12s} largest share {found.max():.3f}, layer {layer + 1}, head {head + 1}; even {even:.3f}")
    assert found.max() > 0

# %% [markdown]
# Again these are the largest of 18 numbers; exercise {ref}`ex-viz-control` finds what a model that was never trained
# reaches for *Law*. And the sentence was too hard for ours. The example that is shown most often is not in the paper;
# it comes from a later article by one of the authors {cite}`uszkoreit2017transformer`: *The animal didn't cross the
# street because it was too tired.* Change one word, and *it* means something else: *... because it was too wide.*
# Such a **minimal pair** (two sentences that differ in one word) is a far better instrument than one sentence. If a
# head follows what *it* means, its weight must move from *animal* to *street*. In the article it does: in one of
# eight heads of the last encoder layer, English to French, for this pair.

# %%
pair = {word: explore_attention(model, tokenizer, f"The animal didn't cross the street because it was too {word}.",
                                kinds=["encoder"]).maps[0] for word in ("tired", "wide")}
shares = {(word, noun): share(maps, "it", [noun]) for word, maps in pair.items() for noun in ("animal", "street")}
assert all(found.shape == (N, h) for found in shares.values())

# %% [markdown]
# For each noun we take the head that looks at it most in the first sentence, and ask what that head does in the
# second. A change of more than 0.1 counts as a move.

# %% tags=["nbval-ignore-output", "row-F7"]
for noun in ("animal", "street"):
    layer, head = divmod(shares["tired", noun].argmax().item(), h)
    tired, wide = (shares[word, noun][layer, head].item() for word in ("tired", "wide"))
    moved = "moves" if abs(tired - wide) > 0.1 else "does not move"
    print(f"it -> {noun:6s} layer {layer + 1}, head {head + 1}: {tired:.3f} (tired), {wide:.3f} (wide): {moved}")
    assert tired == shares["tired", noun].max()

# %% [markdown]
# Read the two lines with care. A large share in the first sentence is what a screenshot would show as "the model
# knows that *it* is the animal". If the share hardly changes in the second sentence, where *it* is the street, the
# head does something else: it may look at the subject, or at the first noun, or at a word of several pieces. Then the
# picture was right, and the reading of it wrong.
#
# Nor is it clear that the model needs to know. In German the pronoun must agree with its noun (*das Tier, es*; *die
# Straße, sie*), so for this pair it matters; between two nouns of one gender it does not. {cite:t}`muller2018large`
# let translation models choose between right and wrong German pronouns in 12,000 sentences.
# {cite:t}`voita2018context` compare attention with coreference over many sentences, in a model that reads the
# sentence before as well, and find that it does capture something of it. That is what evidence looks like.
#
# Here is that encoder to look around in, with *tired*.

# %% tags=["nbval-ignore-output"]
best_layer, best_head = divmod(shares["tired", "animal"].argmax().item(), h)
animal = explore_attention(model, tokenizer, "The animal didn't cross the street because it was too tired.",
                           kinds=["encoder"], layer=best_layer + 1, head=best_head + 1,
                           query=1 + positions(pair["tired"].queries, "it")[0])
assert torch.equal(animal.maps[0].weights, pair["tired"].weights)
animal

# %% [markdown]
# **Where.**
#
# - Code: `explore_attention`; its `.maps` hold the weights as `(layer, head, query, key)`.
# - Exercises: {ref}`ex-viz-control`.

# %% [markdown]
# ## Figure 5: heads with a structure
#
# **Question.** What do *all* heads look like, not the two that were chosen?
#
# **Picture.** The encoder on the sentence about the car. All maps share one colour scale, so that faint
# heads look faint. Rows are queries, columns keys, both in the order of the sentence.

# %% mystnb={"image": {"alt": "Eighteen small heat maps in three rows of six: a row for each encoder layer, a column for each head. In each, the eleven tokens of the sentence are queries down and keys across."}, "figure": {"caption": "All 18 heads of the encoder on *Tom sold his car because it was old.*, on one colour scale from 0 to 1. The last column of each map is the end of the sentence.", "name": "fig-viz-all-heads"}} tags=["row-F5"]
encoder = explorer.maps[1]
assert encoder.name == "Encoder self-attention" and encoder.weights[..., -1].mean(-1).max() > 0.5  # a bright column
figure, axes = plt.subplots(N, h, figsize=(6.6, 4.7), layout="constrained")
for (layer, head), ax in [((i, j), axes[i, j]) for i in range(N) for j in range(h)]:
    image = ax.imshow(encoder.weights[layer, head], cmap=HEAT_MAP, vmin=0, vmax=1)
    ax.set(xticks=[], yticks=[], title=f"{layer + 1}.{head + 1}")
    if head == 0:
        ax.set_yticks(range(len(encoder.queries)), labels=encoder.queries, fontsize=5)
    if layer == N - 1:
        ax.set_xticks(range(len(encoder.keys)), labels=encoder.keys, fontsize=5, rotation=90)
figure.supylabel("query", fontsize=9)
figure.colorbar(image, ax=axes, label="attention weight; keys across", location="bottom", shrink=0.5, aspect=40)
plt.show()

# %% [markdown]
# What patterns are there to be seen? Three kinds have been described again and again:
#
# - **stripes beside the diagonal**: the token before, the token after, or the token itself;
# - **a bright column**: all queries look at one key, most often the end of the sentence or a full stop;
# - **blurred maps**: a mean over much of the sentence.
#
# {cite:t}`clark2019what` find these same three in BERT, next to a few heads that agree well with grammar, such as one
# that goes from a direct object to its verb. {cite:t}`voita2019analyzing` find heads of the first kind, of grammar,
# and for rare words in a translation model's encoder. What ours has is counted two sections on.

# %% [markdown]
# ## Encoder-decoder attention: a soft alignment
#
# **Question.** Which source word does the decoder look at for each target word? Is it the one that a human would
# align?
#
# A **word alignment** says which source word each target word translates. Statistical translation systems were built
# on them; {cite:t}`bahdanau2015neural` showed that attention learns something like it by itself. We write four
# alignments by hand. The sentences are chosen so that German changes the order.

# %%
ALIGNED = [
    ("I don't know where Tom bought his new car.", "Ich weiß nicht, wo Tom sein neues Auto gekauft hat.",
     "Ich-I weiß-know nicht-don't wo-where Tom-Tom sein-his neues-new Auto-car gekauft-bought hat-bought"),
    ("Tom sold his car because it was old.", "Tom verkaufte sein Auto, weil es alt war.",
     "Tom-Tom verkaufte-sold sein-his Auto-car weil-because es-it alt-old war-was"),
    ("My brother is reading a book in the garden.", "Mein Bruder liest im Garten ein Buch.",
     "Mein-My Bruder-brother liest-reading im-in Garten-garden ein-a Buch-book"),
    ("Yesterday I saw an old man in the park.", "Ich habe gestern im Park einen alten Mann gesehen.",
     "Ich-I habe-saw gestern-Yesterday im-in Park-park einen-an alten-old Mann-man gesehen-saw"),
]
crosses = [explore_attention(model, tokenizer, source, target, kinds=["cross"]).maps[0] for source, target, _ in ALIGNED]

# %% [markdown]
# **A trap of one row.** A decoder query has two tokens: the one it *reads* and the one it *predicts*. The outputs are
# shifted right, so row $i$ reads $y_{i-1}$ and predicts $y_i$. Label the rows with one and think of the other, and
# the alignment is off by one. Which of the two does the model align? We count both: how often is the key with the
# largest weight in the word that a human aligned?

# %%
def hits(maps, alignment, offset):
    """(tokens, N, h) of 0 and 1: is the strongest key of the row at `offset` in the aligned source word?"""
    found = []
    for pair in alignment.split():
        german, english = pair.split("-")
        columns = torch.tensor(positions(maps.keys, english))
        for i in positions(maps.queries, german):  # the rows that read the German word
            found.append(torch.isin(maps.weights[:, :, i + offset].argmax(-1), columns))
    return torch.stack(found)

def accuracy(offset):
    return torch.cat([hits(maps, text, offset) for maps, (*_, text) in zip(crosses, ALIGNED)]).double().mean(0)

predicts, reads = accuracy(-1), accuracy(0)  # the row before the one that reads a token predicts it

# %% tags=["nbval-ignore-output"]
for layer in range(N):
    print(f"layer {layer + 1}, best head: {predicts[layer].max():.0%} of the predicted, {reads[layer].max():.0%} of the read tokens")
assert predicts[-1].max() > 0.3
assert predicts[-1].max() > reads[-1].max()

# %% [markdown]
# In the last layer, the alignment belongs to the token that is being *predicted*: the search for the next word is
# what the layer is for. In the first layer it may be otherwise, since the query there is little more than the
# embedding of the token that was *read*. Compare the two percentages of each layer. Where layers differ, no one choice
# of labels is right for all of them. (The best head of a few is itself the find of a search; an exercise at the end takes
# the mean of all heads.)
#
# **Picture.** The first of the four sentences, the mean of the heads of each layer. Rows are labelled with what they
# predict; a layer that aligns the token it reads shows its marks one row too low.

# %% mystnb={"image": {"alt": "Three heat maps of the encoder-decoder attention, the mean of six heads in each layer: predicted German tokens down, English tokens across. German puts the verb gekauft last, English has bought in the middle."}, "figure": {"caption": "Encoder-decoder attention, mean of the heads of each layer. A row is labelled with the token that it predicts. *gekauft* (bought) stands at the end in German.", "name": "fig-viz-cross"}}
figure, axes = plt.subplots(1, N, figsize=(6.4, 2.9), layout="constrained", sharey=True)
maps = crosses[0]
for layer, ax in enumerate(axes):
    plot_attention(maps.weights[layer].mean(0), maps.predicts, maps.keys, ax=ax, title=f"layer {layer + 1}")
    ax.set(ylabel="query, by what it predicts" if layer == 0 else "", xlabel="key")
    ax.tick_params(labelsize=7)
plt.show()

# %% [markdown]
# Is encoder-decoder attention an alignment, then? Partly. {cite:t}`ghader2017what` measure that attention in
# translation agrees with human alignment for nouns more than for verbs, whose translation needs more of the sentence.
# And a function word such as *hat* has no partner of its own (we gave it *bought*): any mark in its row is right or
# wrong as you like.
#
# **Where.** Exercise {ref}`ex-viz-offset`.

# %% [markdown]
# ## Measures instead of anecdotes
#
# **Question.** What does a head do *on average*?
#
# **Equation.** How sharp is a distribution? Its **entropy** says, in bits:
#
# $$
# H(A_i) = -\sum_j A_{ij} \log_2 A_{ij}
# $$ (viz-entropy)
#
# It is 0 if one key has everything, and $\log_2 S$ if all $S$ keys have the same. $2^{H}$ is a number of keys: a head
# with $H = 2$ bits is as spread as one that looks at four keys evenly.
#
# We need more than one sentence. Here are fifty, with translations, everyday ones that a model of this size can
# handle. They are written for this chapter; but they are so common that some of them, or their like, are surely in
# the training data. So the loss on them is no test score, and we shall only compare it with itself.

# %% tags=["hide-input"]
first = """I am tired. | Ich bin müde. / Tom is my brother. | Tom ist mein Bruder. / We have no time. | Wir haben keine Zeit.
She speaks German very well. | Sie spricht sehr gut Deutsch. / The dog is sleeping. | Der Hund schläft.
I have lost my keys. | Ich habe meine Schlüssel verloren. / Where is the train station? | Wo ist der Bahnhof?
He bought a new car. | Er hat ein neues Auto gekauft. / I don't know what to do. | Ich weiß nicht, was ich tun soll.
Can you help me? | Kannst du mir helfen? / They live in a small house. | Sie wohnen in einem kleinen Haus.
Mary wants to go home. | Maria will nach Hause gehen. / It is raining today. | Heute regnet es.
My father works in a hospital. | Mein Vater arbeitet in einem Krankenhaus. / How old are you? | Wie alt bist du?
I will call you tomorrow. | Ich werde dich morgen anrufen. / Tom does not drink coffee. | Tom trinkt keinen Kaffee.
This book is very interesting. | Dieses Buch ist sehr interessant. / The train was late. | Der Zug hatte Verspätung.
The children are playing in the garden. | Die Kinder spielen im Garten. / What is your name? | Wie heißt du?
She gave me a present. | Sie hat mir ein Geschenk gegeben. / I have to get up early. | Ich muss früh aufstehen.
He is taller than his brother. | Er ist größer als sein Bruder. / Please close the window. | Bitte schließen Sie das Fenster.
We went to the cinema yesterday. | Wir sind gestern ins Kino gegangen. / He did not say a word. | Er hat kein Wort gesagt."""

# %% tags=["hide-input"]
second = """I think that she is right. | Ich glaube, dass sie recht hat. / I need more money. | Ich brauche mehr Geld.
Tom can swim very fast. | Tom kann sehr schnell schwimmen. / She is afraid of dogs. | Sie hat Angst vor Hunden.
I would like a glass of water. | Ich möchte ein Glas Wasser. / She was very happy. | Sie war sehr glücklich.
He came back from Boston. | Er ist aus Boston zurückgekommen. / We are learning English. | Wir lernen Englisch.
The weather is nice today. | Das Wetter ist heute schön. / I do not understand the question. | Ich verstehe die Frage nicht.
You should see a doctor. | Du solltest zum Arzt gehen. / My sister likes to read. | Meine Schwester liest gern.
There is a cat on the table. | Auf dem Tisch ist eine Katze. / Tom and Mary are friends. | Tom und Maria sind Freunde.
He lost his job last year. | Er hat letztes Jahr seine Arbeit verloren. / Open your book, please. | Öffne bitte dein Buch.
I saw him at school. | Ich habe ihn in der Schule gesehen. / Do you want to eat something? | Möchtest du etwas essen?
The problem is not so simple. | Das Problem ist nicht so einfach.
I have never been to Germany. | Ich war noch nie in Deutschland. / The old man was sitting alone. | Der alte Mann saß allein.
We must leave before noon. | Wir müssen vor Mittag gehen. / Why did you come so late? | Warum bist du so spät gekommen?"""

# %%
sentences = [pair.split(" | ") for line in f"{first}\n{second}".splitlines() for pair in line.split(" / ")]
pairs = [(tokenizer.encode(english), tokenizer.encode(german)) for english, german in sentences]
batch = make_batch(pairs)
with record_attention(model) as weights, torch.inference_mode():
    model(batch.source, batch.target_in)
print(len(pairs), "pairs,", batch.n_tokens, "target tokens")

# %% [markdown]
# **Code.** Each encoder query is a word's token (we leave out the end of the sentence and the padding as queries).
# Its weights are split into five parts: on the end of the sentence (*eos*), on the token before, on itself, on the
# token after, and the rest.

# %%
real, eos = batch.source != model.config.pad_id, batch.source == model.config.eos_id
word = (real & ~eos)[:, None, :]  # (B, 1, L): the queries that count
place = torch.arange(batch.source.size(1))
offset = place[None, :] - place[:, None]  # (L, S): key minus query

def mean(x):
    """The mean over the word queries of a (B, h, L) tensor, for each head."""
    return (x * word).sum((0, 2)) / word.sum()

def entropy(A):
    return -(A * A.clamp_min(1e-30).log2()).sum(-1)

# %%
parts = {"eos": eos[:, None, None], "previous": (offset == -1) & ~eos[:, None, None],
         "itself": (offset == 0) & ~eos[:, None, None], "next": (offset == 1) & ~eos[:, None, None]}
A = torch.stack([weights[f"encoder.layers.{i}.self_attention"] for i in range(N)])  # (N, B, h, L, S)
profile = {name: torch.stack([mean((layer * part).sum(-1)) for layer in A]) for name, part in parts.items()}
profile["other"] = 1 - sum(profile.values())
bits = torch.stack([mean(entropy(layer)) for layer in A])
even_bits = mean(real.sum(-1).log2()[:, None, None].expand(-1, 1, word.size(2))).item()
assert all(((part > -1e-5) & (part < 1 + 1e-5)).all() for part in profile.values())
assert (bits >= 0).all() and (bits < even_bits).all()

# %% [markdown]
# **Check.** Entropy by hand: four even weights have 2 bits, one weight of 1 has none. And no head is as spread as
# even weights would be (`even_bits`).

# %%
assert_close(entropy(torch.tensor([0.25, 0.25, 0.25, 0.25])), torch.tensor(2.0))
assert_close(entropy(torch.tensor([0.0, 1.0, 0.0])), torch.tensor(0.0))
print(f"even weights: {even_bits:.2f} bits")

# %% mystnb={"image": {"alt": "Left: eighteen stacked horizontal bars, one for each encoder head, which split its attention into end of sentence, previous token, itself, next token and other. Right: the entropy of each head in bits, as dots, with a vertical line where even weights would be."}, "figure": {"caption": "Every encoder head on the fifty sentences. Left: where the attention of a word goes. Right: how sharp it is; the dashed line is what even weights have.", "name": "fig-viz-measures"}} tags=[]
names = [f"{layer}.{head}" for layer in range(1, N + 1) for head in range(1, h + 1)]
figure, (left, right) = plt.subplots(1, 2, figsize=(6.2, 4), layout="constrained", sharey=True, width_ratios=(2.2, 1))
start = torch.zeros(N * h)
for (name, part), color in zip(profile.items(), (*PALETTE[:4], "#BBBBBB")):
    left.barh(names, part.flatten(), left=start, color=color, label=name)
    start += part.flatten()
assert_close(start, torch.ones(N * h))
right.plot(bits.flatten(), names, "o", markersize=4)
right.axvline(even_bits, linestyle="--", color="grey")
left.set(xlabel="share of the attention", ylabel="layer.head", xlim=(0, 1))
left.invert_yaxis()
right.set(xlabel="entropy (bits)", xlim=(0, None))
figure.legend(loc="outside upper left", ncols=5, frameon=False)
plt.show()

# %% [markdown]
# Two things to look for. Do the layers differ more than the heads of one layer? And how much of the attention goes to
# *eos*, which stands for no word at all? A head that puts all its weight there has an entropy of almost 0: a sharp head
# need not be one that has found something. {cite:t}`clark2019what` see the like in BERT, whose middle layers put over
# half of their attention on the separator `[SEP]`, and read it as heads that have **nothing to do**: weights must sum
# to 1, so a head that wants to add nothing needs a place to rest. Exercise {ref}`ex-viz-norms` tests that reading.
#
# **Picture.** And how far do they look? For each distance, the mean weight of the key there, where there is one, in
# each layer.

# %% mystnb={"image": {"alt": "Line chart: the mean attention weight against the distance from query to key, from minus five to plus five tokens, one line for each of the three encoder layers, and a dotted line for even weights."}, "figure": {"caption": "Distance profile of the encoder: mean weight of the key that stands so many tokens to the right of the query, the end of the sentence left out as a key.", "name": "fig-viz-distance"}}
def at_distance(A, d):
    """The mean weight at distance d over all sentences, heads and word queries that have a word there."""
    there = (offset == d) & word.transpose(1, 2) & word
    return ((A * there[:, None]).sum() / (A.size(1) * there.sum())).item()

distances = range(-5, 6)
even = (real[:, None, None] / real.sum(-1)[:, None, None, None]).expand(-1, 1, len(place), -1)
for layer, dash in enumerate(("-", "--", "-.")):
    plt.plot(distances, [at_distance(A[layer], d) for d in distances], dash, marker="o", label=f"layer {layer + 1}")
plt.plot(distances, [at_distance(even, d) for d in distances], ":", color="grey", label="even weights")
plt.gca().set(xlabel="key minus query (tokens)", ylabel="mean weight", ylim=(0, None), xticks=distances)
plt.legend(frameon=False, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1))
plt.show()

# %% [markdown]
# "Even weights" are not flat here, since only long sentences have distant words, and each of their keys gets less. A
# layer lies below that line at every distance shown if *eos*, which is left out, takes much of its attention.
#
# Such measures say what a head *does*. They do not say what it is *for*. To learn that, take it away.

# %% [markdown]
# ## Knock out a head
#
# **Question.** Which heads does the model need?
#
# **Equation.** With $W^O$ cut into $h$ blocks of $d_v$ rows, multi-head attention is a sum over heads
# ({ref}`ex-sum-of-heads`):
#
# $$
# \mathrm{MultiHead} = \sum_{i=1}^{h} A_i\, V_i\, W_i^O
# $$ (viz-sum)
#
# With $W_i^O = 0$, head $i$ is gone, and everything else is as it was.
#
# **Code.** PyTorch stores a projection transposed, so the block is a slice of *columns* of `W_O.weight`. With `even`,
# the head stays but cannot choose: its scores are all 0, so that its weights are even.

# %%
show(knocked_out)

# %% [markdown]
# **Check.** Without head 2, the module's output has lost exactly the term $i = 2$ of equation {eq}`viz-sum`; after
# the block, everything is back.

# %%
with torch.inference_mode():
    x = outputs["x"]
    A_x = encoder.weights[1][None]  # layer 2 on the sentence about the car
    terms = [(A_x @ values)[:, i] @ attention.W_O.weight.unflatten(1, (h, -1))[:, i].T for i in range(h)]
    assert_close(sum(terms), outputs["output"])
    with knocked_out((attention, 1)):
        assert_close(attention(x, x), outputs["output"] - terms[1])
    assert_close(attention(x, x), outputs["output"])

# %% [markdown]
# **Measure.** The loss on the fifty sentences, in nats a target token, with each of the 54 heads removed in turn.

# %%
def loss():
    return math.log(perplexity(model, pairs))

modules = {f"{name}, layer {i + 1}": getattr(layer, part)
           for name, layers, part in (("encoder self", model.encoder.layers, "self_attention"),
                                      ("decoder self", model.decoder.layers, "self_attention"),
                                      ("encoder-decoder", model.decoder.layers, "cross_attention"))
           for i, layer in enumerate(layers)}
whole = loss()
change = torch.zeros(len(modules), h)
for row, module in enumerate(modules.values()):
    for i in range(h):
        with knocked_out((module, i)):
            change[row, i] = loss() - whole

# %% tags=["nbval-ignore-output"]
print(f"whole model: {whole:.3f} nats a token; largest change {change.max():.3f}, median {change.median():.4f}")
print(f"heads whose removal changes the loss by less than 0.01: {(change.abs() < 0.01).sum()} of {change.numel()}")
assert loss() == whole
assert change.max() > 0.02 and change.median() < change.max() / 4
assert change.argmax().item() // h >= 2 * N  # in the encoder-decoder attention

# %% mystnb={"image": {"alt": "Heat map of the change of the loss when one head is removed: nine rows for three attentions in three layers, six columns for heads, with the number written in each cell."}, "figure": {"caption": "What the model loses without one head: change of the loss in nats a token, 50 sentences. Brighter is worse.", "name": "fig-viz-knock-out"}}
ax = plt.subplots(figsize=(5.2, 3.4), layout="constrained")[1]
ax.imshow(change, cmap=HEAT_MAP, aspect="auto")
for row in range(len(modules)):
    for i in range(h):
        color = "black" if change[row, i] > 0.5 * change.max() else "white"
        ax.text(i, row, f"{change[row, i]:.3f}", ha="center", va="center", color=color, fontsize=8)
ax.set_yticks(range(len(modules)), labels=modules)
ax.set_xticks(range(h), labels=range(1, h + 1))
ax.set_xlabel("head")
plt.show()

# %% [markdown]
# The head that costs most is one of encoder-decoder attention, the only way by which the decoder learns of the
# source; and the median head costs less than a quarter of what that one does. Does the model not *need* the others?
# One at a time is a weak test, since the heads that stay can do a missing one's work. So let us remove many: the
# cheapest first, by the numbers just measured, and more and more of them.

# %%
order = change.flatten().argsort()
all_heads = [(module, i) for module in modules.values() for i in range(h)]
counts = [*range(0, 54, 6), 54]
curve = []
for count in counts:
    with knocked_out(*(all_heads[j] for j in order[:count])):
        curve.append(loss() - whole)
assert abs(curve[0]) < 1e-6 and curve[-1] > 1

# %% mystnb={"image": {"alt": "Line chart of the change of the loss against the number of heads removed, from none to all 54, the least important first: flat at first, then rising ever more steeply."}, "figure": {"caption": "Heads removed one after the other, the cheapest first. The last point has no attention at all.", "name": "fig-viz-pruning"}} tags=[]
ax = plt.subplots(figsize=(5, 2.6), layout="constrained")[1]
ax.plot(counts, curve, marker="o")
ax.set(xlabel="heads removed of 54, cheapest first", ylabel="change of the loss\n(nats a token)", xticks=counts)
plt.show()
assert curve[counts.index(12)] < 0.25 * curve[-1]  # twelve heads cost little

# %% [markdown]
# {cite:t}`michel2019sixteen` draw this curve for a large translation model and for BERT: 20 and 40 percent of the
# heads go without noticeable harm, and some layers work with a single head. {cite:t}`voita2019analyzing` let training
# itself choose, and remove 38 of 48 encoder heads for a loss of 0.15 BLEU; those that stay are mostly ones with a
# recognisable role. Three cautions:
#
# - Removal after training says what *this* model depends on, not what a model trained without the head would need.
# - A head replaced by zeros puts the next layer norm before an input it has never seen; replaced by its mean output,
#   the same head may matter less.
# - The loss on short, common sentences does not ask for what the encoder's self-attention is good at. On other text
#   the ranking may be another.
#
# **Where.**
#
# - Code: `knocked_out` in `annotated_transformer/looking/inspection.py`.
# - Tests: `test_a_model_without_a_head_is_one_whose_columns_of_W_O_are_removed` in `tests/experiments/test_knock_out.py`.
# - Exercises: {ref}`ex-viz-blind`, {ref}`ex-viz-norms`.

# %% [markdown]
# (section-viz-controlled)=
# ## A controlled corpus: the three figures, measured
#
# **Question.** So far each figure was one sentence, and nobody could say where a head *should* look. Can we make a case
# where this is known, for thousands of sentences, and then ask what is lost without the head?
#
# We write the language ourselves. A **controlled corpus** is made by rules, so that every sentence comes with its
# answer. Ours is a grammar that writes English and German at the same time: ninety things (thirty of each German
# gender), ten persons, clauses with *it* and *its*, verbs whose particle stands far away, and German clauses that end
# in their verb. For each sentence it says which noun the pronoun refers to, its **antecedent**, and which other noun
# could be mistaken for it, the **distractor**.

# %%
from annotated_transformer.experiments.figures_3_to_5.controlled_corpus import HELD_OUT_NOUNS, THINGS, is_held_out, position, sentences
from annotated_transformer.experiments.figures_3_to_5.controlled_words import PERSONS

test = sentences("test")

def word_of(sentence, role):
    """The English word with this role, or a dash."""
    where = position(sentence.english, role)
    return sentence.english[where].text if where >= 0 else "-"

for number in (2002, 3000, 2000, 1002):
    print(*test[number].texts, sep="\n")
    print("   ", *(f"{role}: {word_of(test[number], role)};" for role in ("pronoun", "antecedent", "distractor")))

# %% [markdown]
# German must choose *er*, *sie* or *es* (*ihn* as an object, *sein* and *ihr* for *its*) by the gender of the
# antecedent. Which noun that is follows from rules that we made: the subject of the clause before, if it is a thing,
# else its object; never a noun that only says where something is (*on a light pan*), however near it stands. Where one
# thing does not fit into another, the adjective decides, as in the sentence about the animal and the street.
#
# **Check.** Two things are held out. Fifteen nouns occur in no training sentence with a pronoun: what their gender is
# can be learned from articles and adjectives only. And some pairs of clauses occur in none either. In the test, the
# distractor would always take another pronoun, so a model that guesses the wrong noun is found out.

# %%
training = [sentence for sentence in sentences("train") if sentence.gender]
assert not any(HELD_OUT_NOUNS & {word.text for word in sentence.english} for sentence in training)
assert not {s.template for s in training} & {s.template for s in test if is_held_out(s)[1]}
parts = [is_held_out(sentence) for sentence in test]
assert [parts.count(part) for part in ((False, False), (True, False), (False, True), (True, True))] == [1000] * 4
assert [sum(found == gender for _, found in THINGS.values()) for gender in "mfn"] == [30] * 3
assert (len(PERSONS), len(HELD_OUT_NOUNS)) == (10, 15)
print(f"{len(sentences('train')):,} training sentences, {len(training):,} with a pronoun; {len(test):,} in the test")

# %% [markdown]
# **First, the model of this chapter.** It was trained on real sentences and has never seen ours. Give it the German
# translation up to the pronoun, and let it choose among *er*, *sie* and *es*. In a second step we ask, as Figure 4
# does, where its encoder's *it* looks: but now in many sentences, and beside the distractor.

# %%
def plain(words):
    return " ".join(word.text for word in words).replace(" ,", ",").replace(" .", ".")

def n_pieces(words):
    return len(tokenizer.encode(plain(words)))

def pieces_of(sentence, role):
    """Where the English word with this role stands among the tokens."""
    where = position(sentence.english, role)
    return slice(n_pieces(sentence.english[:where]), n_pieces(sentence.english[:where + 1]))

# %%
asked = [s for s in test[:600] if word_of(s, "distractor") != "-" and word_of(s, "pronoun") == "it"
         and s.german[position(s.german, "pronoun")].text in ("er", "sie", "es")][:160]
starts = [s.german[:position(s.german, "pronoun")] for s in asked]
batch_it = make_batch([(tokenizer.encode(plain(s.english)), tokenizer.encode(plain(start)))
                       for s, start in zip(asked, starts)])

# %%
choices = torch.tensor([tokenizer.encode(word)[0] for word in ("er", "sie", "es")])
with record_attention(model) as weights, torch.inference_mode():
    logits = model(batch_it.source, batch_it.target_in)
rows = torch.tensor([n_pieces(start) for start in starts])
chosen = logits[torch.arange(len(asked)), rows][:, choices].argmax(-1)
right = torch.tensor(["mfn".index(s.gender) for s in asked]) == chosen
A_it = torch.stack([weights[f"encoder.layers.{i}.self_attention"] for i in range(N)], 1)
looks = {role: torch.stack([A[:, :, pieces_of(s, "pronoun"), pieces_of(s, role)].sum(-1).mean(-1)
                            for A, s in zip(A_it, asked)]).mean(0) for role in ("antecedent", "distractor")}

# %% tags=["nbval-ignore-output"]
at = divmod(looks["antecedent"].argmax().item(), h)
print(f"book/model: {right.double().mean():.0%} of {len(asked)} pronouns right; three to choose from")
print(f"layer {at[0] + 1}, head {at[1] + 1} looks most at the antecedent: {looks['antecedent'][at]:.3f}, "
      f"and at the distractor: {looks['distractor'][at]:.3f}")
assert 0.2 < right.double().mean() < 0.5
assert looks["distractor"][at] > 0.5 * looks["antecedent"][at]

# %% [markdown]
# It guesses. And the head with the most weight on the antecedent has about as much for the noun that it should not look
# at. In one sentence without a distractor, this head would have made a fine Figure 4. (Our sentences are odd, and unlike
# what it was trained on: this says that it fails *here*.)
#
# **Then, a model that has learned it.** A small Transformer of the same design ($N = 2$, $h = 4$,
# $d_{\text{model}} = 64$) learns the corpus in some minutes on one core. Attention differs from one training run to the
# next, so it is trained three times, with three seeds. That is too long for this page: the command that the cell
# prints does it, and writes the file that the cell reads.

# %%
import itertools

from annotated_transformer.experiments.result_file import read_result

measured = read_result("results/figures_3_to_5.json")
*runs, together = measured["records"]
assert (measured["model"]["N"], measured["model"]["h"], measured["model"]["d_model"]) == (2, 4, 64) and len(runs) == 3
print(measured["command"])
print(f"{'pronouns right, mean of 3 seeds':34s} forced  greedy  sentences")
for part, found in together["accuracy"].items():
    print(f"{'held out: ' + part if part != 'seen' else 'nothing held out':34s} {found['forced']:.1%}   "
          f"{found['greedy']:.1%}   {found['sentences']:,.0f}")
    assert found["forced"] >= 0.95 and found["greedy"] >= 0.95

# %% [markdown]
# *Forced* is the choice after the right German words before it; *greedy* is what stands at that place in a translation
# that the model made alone. All four parts are above 95 percent, new nouns in new pairs of clauses included. So this
# model *does* know what *it* refers to, as far as this language goes. Where does it look?
#
# **Equation.** A **link** asks a head one thing: how much of the weight of query $i$ lies on the keys $J$? Over the $n$
# links of all sentences, a head's **share** is
#
# $$
# s = \frac{1}{n} \sum_{k=1}^{n} \sum_{j \in J_k} A_{i_k j}
# $$ (viz-share)
#
# For each link we choose the head with the largest share on the *validation* sentences, and report its share on the
# *test*, so that the search is no part of the figure.

# %%
def print_shares(names):
    print(f"{'link':32s} mean, and each seed's     even  untrained  with a distractor: right, other")
    for name in names:
        found = together["shares"][name]
        seeds, untrained = " ".join(f"{share:.2f}" for share in found["seeds"]), sum(found["untrained"]) / 3
        two = f"{found['weight beside a rival']:.2f}, {found['rival']:.2f}" if "rival" in found else ""
        print(f"{name:32s} {found['weight']:.2f}  ({seeds})   {found['even']:.2f}  {untrained:.2f}       {two}")

figure_4 = [f"pronoun to antecedent, {kind}" for kind in ("encoder", "decoder", "cross")] + ["pronoun to pronoun, cross"]
figure_3 = ["verb to particle, encoder", "verb to particle, cross", "particle to verb, decoder", "last verb to verb, cross"]
figure_5 = ["article to next noun, encoder", "article to noun two on, encoder", "article to noun, cross",
            "previous word, encoder", "next word, encoder"]
print_shares(figure_4)

# %% [markdown]
# *Encoder*, *decoder* and *cross* are the three attentions; the query of the last two is the row that *predicts* the
# German word. In the decoder, the keys are the antecedent's German noun and its article. *Even* is the share of a head
# that looks everywhere alike; *untrained* that of the best head of the same model before its first step, found in the same
# way. Where the three seeds lie far apart, the models differ: three numbers cannot tell what a fourth would be. Where the
# sentence has a distractor, the last two columns say what the same head gives to the right noun and to the other. The
# encoder-decoder attention hardly looks at the antecedent. It looks at *it*: by then, the encoder can have mixed into that
# vector what it found. Figures 3 and 5:

# %%
print_shares(figure_3)
print_shares(figure_5)

# %%
for name in ("pronoun to antecedent, encoder", "pronoun to antecedent, decoder"):
    found = together["shares"][name]
    assert min(found["seeds"]) > 2 * found["even"] and found["weight beside a rival"] > 2 * found["rival"]
assert max(together["shares"]["pronoun to antecedent, cross"]["seeds"]) < together["shares"]["pronoun to antecedent, cross"]["even"]
assert all(together["shares"][name]["weight"] > together["shares"][name]["even"] for name in figure_3 + figure_5)
assert min(together["shares"]["last verb to verb, cross"]["seeds"]) > 0.9
assert min(together["shares"]["article to noun, cross"]["seeds"]) > 0.5
assert min(together["shares"]["pronoun to pronoun, cross"]["seeds"]) > 0.5
spread = together["shares"]["article to next noun, encoder"]["seeds"]
assert max(spread) > 0.9 and min(spread) < 0.2

# %% [markdown]
# The surest link is that of the last verb: to end a German clause with its verb, the decoder looks at the English one,
# far to the left. And having written *räumte*, it must end the clause with *weg*: a head looks back for it. Of Figure
# 5's structure, the clearest is an article's link to its noun in the encoder-decoder attention: to choose *der*, *die*
# or *das*, the decoder looks ahead to the noun. In the encoder, the three models differ:
# where one has a sharp head for articles, another has none.
#
# **Knock it out.** A large share is a hypothesis: the head finds the antecedent, and the model uses what it finds. So
# every head is removed in turn, in each of the three models, and the pronouns are counted again. The other words are
# counted too: if all suffer alike, the head does something else. For Figure 3, the counted word is the German verb of
# *put*, *took* and *picked*, which depends on the distant particle: *put ... away* is *räumte ... weg*, *put ... back*
# is *stellte ... zurück*.
#
# **Picture.** Each mark is a head: how much it looks at the word in question, and how many answers are still right
# without it.

# %% mystnb={"image": {"alt": "Two scatter plots of heads in three models. Left: share of the pronoun's weight on its antecedent against pronouns right without the head; three filled marks far to the right, one of each model, lie lowest, between 60 and 80 percent, almost all others at the top. Right: share of the verb's weight on its particle against verbs right without the head; most marks lie at the top, also some with large shares; a few lie between 65 and 85 percent."}, "figure": {"caption": "Heads of three models: share (across), and right answers when the head is removed (up). Filled: encoder. Hollow: decoder self-attention (left), encoder-decoder attention (right). Dashed: nothing removed, mean of the three.", "name": "fig-viz-causal"}}
figure, axes = plt.subplots(1, 2, figsize=(6.4, 2.9), layout="constrained", sharey=True)
for ax, link, word, other in zip(axes, ("pronoun to antecedent", "verb to particle"), ("pronoun", "verb"), ("decoder", "cross")):
    for (run, marker, color), kind in itertools.product(zip(runs, "os^", PALETTE), ("encoder", other)):
        across = torch.tensor(run["shares"][f"{link}, {kind}"]["all heads"]).flatten()
        up = 100 * torch.tensor(run["ablation"][f"{kind}, zero"][word]).flatten()
        assert across.shape == up.shape == (8,)
        ax.plot(across, up, marker, color=color, markerfacecolor=color if kind == "encoder" else "none",
                label=f"seed {run['seed']}" if kind == "encoder" else None)
    ax.axhline(100 * sum(run["ablation"]["whole"][word] for run in runs) / 3, linestyle="--", color="grey", linewidth=1)
    ax.set(xlabel=f"share, {link}", title=f"{word}s", xlim=(-0.03, 1.03))
axes[0].set_ylabel("right without the head (%)")
axes[0].legend(frameon=False, loc="lower left")
plt.show()

# %% [markdown]
# The heads with the largest share, once more chosen on the validation sentences, in numbers. "Others" is what is right
# when another head of the same attention is removed instead (a mean). $p$ is that of **McNemar's test**, for right and
# wrong answers to the same questions: only answers that changed count, and if the head did not matter, each of them
# would be as likely to change for the better as for the worse.

# %%
show(mcnemar)

# %%
JUDGED = ("pronoun to antecedent, encoder", "pronoun to antecedent, decoder",
          "verb to particle, encoder", "verb to particle, cross")
removed = {link: [run["ablation"][f"best: {link}"] | {"share": run["shares"][link]["weight"]} for run in runs]
           for link in JUDGED}
print(f"{'best head, removed':31s} seed share  before   after  others  other words  p")
for link, rows in removed.items():
    for seed, row in enumerate(rows, 1):
        print(f"{link:31s} {seed:4d}  {row['share']:.2f}  {row['before']:6.1%}  {row['after']:6.1%}  {row['other heads, mean']:6.1%}  "
              f"{row['other words after']:11.1%}  {row['p']:.0e}")

# %%
for row in removed["pronoun to antecedent, encoder"]:  # it falls, in every seed, and only the pronouns do
    assert row["share"] > 0.7 and row["before"] - row["after"] > 0.2 and row["p"] < 1e-50
    assert row["other heads, mean"] > row["after"] + 0.2 and row["other words after"] > 0.999
costs = {link: [row["p"] < 0.001 for row in rows] for link, rows in removed.items()}
assert costs["pronoun to antecedent, decoder"] == [False, True, True]
assert costs["verb to particle, encoder"] == [True, False, False]
assert costs["verb to particle, cross"] == [False, True, True]
right_without, looks_at = runs[1]["ablation"]["encoder, zero"]["pronoun"], runs[1]["shares"][JUDGED[0]]["all heads"]
assert right_without[1][0] < 0.85 and looks_at[1][0] < 0.05
assert removed["pronoun to antecedent, decoder"][0]["share"] > 0.5 and removed["verb to particle, encoder"][1]["share"] > 0.5

# %% [markdown]
# **Figure 4.** In every seed, one head of the encoder has more than 0.7 of *it* on the antecedent, and without it more
# than a fifth of all pronouns go wrong, while 99.9 percent of the other words stay right. The head is needed, and needed
# for pronouns. What it does for them, the minimal pair below will tell.
#
# **Figure 3.** The same job is done in different places. The first model fetches the particle in the encoder; the
# other two in the encoder-decoder attention.
#
# **And shares without a consequence.** In the first model, a decoder head gives more than half of its weight to the
# antecedent, at the very place where the pronoun is to be predicted. In the second, an encoder head gives more than half
# of the verb's to its particle. Remove them: nothing is lost that chance would not explain. As pictures, they are as
# good as the others. Nor must a needed head have a share: in the second model there is one with next to no weight on
# the antecedent, and without it one pronoun in six goes wrong.

# %% [markdown]
# **Break it: the minimal pair.** Is the encoder's head one for *anaphora*, then? Two sentences with held-out nouns in a
# held-out pair of clauses. What is too *wide* does not go in; what is too *narrow* does not let it in. One word changes,
# and *it* is the other noun.

# %% mystnb={"image": {"alt": "Two heat maps side by side, for the sentences about a wheel that does not fit into a bucket because it is too wide, or too narrow. Eight rows for the encoder's heads, a column for each word; wheel and bucket are marked. In both maps row 2.2 has all its weight on wheel; row 1.1 has it on wide in the first map and on bucket in the second."}, "figure": {"caption": "Where *it* looks in the first seed's model, all heads of the encoder (layer.head). The two sentences differ in one word.", "name": "fig-viz-wheel"}}
figure, axes = plt.subplots(1, 2, figsize=(6.6, 3.3), layout="constrained", sharey=True)
names = [f"{layer}.{head}" for layer in (1, 2) for head in (1, 2, 3, 4)]
for ax, (text, found) in zip(axes, runs[0]["example"].items()):
    words = [*text.split(), "</s>"]
    plot_attention(torch.tensor(found["it"]).flatten(0, 1), names, words, ax=ax, title=f"it ... too {words[-3]}")
    ax.set_ylabel("layer.head" if ax is axes[0] else "")
    ax.tick_params(labelsize=7)
    for j in (words.index("wheel"), words.index("bucket")):
        ax.get_xticklabels()[j].set(weight="bold", color=PALETTE[1])
plt.show()

# %%
for run in runs:
    layer, head = run["shares"]["pronoun to antecedent, encoder"]["best"]
    for found in run["example"].values():
        A_row = found["it"][layer][head]
        print(f"seed {run['seed']}, head {layer + 1}.{head + 1}: wheel {A_row[1]:.2f}, bucket {A_row[7]:.2f};  "
              f"{found['translation'].split(' , ')[1]}")
        assert A_row[1] > 0.99 and A_row[7] < 0.01
    assert [found["translation"].split()[9] for found in run["example"].values()] == ["es", "er"]
wide, narrow = (found["it"][0][0] for found in runs[0]["example"].values())  # head 1.1
assert wide[12] > 0.9 and narrow[7] > 0.9

# %% [markdown]
# The translations are right: *Rad* (wheel) is neuter, *es*; *Eimer* (bucket) is masculine, *er*. But the head does not
# move, in any of the three models. It looks at the wheel also where *it* is the bucket. What it finds is not what *it*
# refers to. It finds the *first thing of the sentence*, and in about three test sentences out of four that is the
# antecedent. A mean over all sentences cannot tell these two apart. (Head 1.1 does move: from the adjective to the
# bucket.) So split the sentences, and choose the best head of each half anew.

# %%
print("antecedent is the          seed  head  its noun  other noun   before  removed  (removed, other half)")
for place in ("first", "second"):
    for run in runs:
        found = run["places"][place]
        layer, head = found["best"]
        print(f"{place:6s} thing, best head  {run['seed']:4d}   {layer + 1}.{head + 1}      {found['weight beside a rival']:.2f}        "
              f"{found['rival']:.2f}   {found['before']:6.1%}   {found['after']:6.1%}  ({found['other sentences after']:.1%})")

# %%
halves = {place: [run["places"][place] for run in runs] for place in ("first", "second")}
sizes = {place: rows[0]["sentences"] for place, rows in halves.items()}
assert 0.7 < sizes["first"] / sum(sizes.values()) < 0.8
for run, row in zip(runs, halves["first"]):
    assert row["best"] == run["shares"]["pronoun to antecedent, encoder"]["best"]  # the same head as over all sentences
    assert row["weight beside a rival"] > 0.97 and row["rival"] < 0.03
    assert row["before"] - row["after"] > 0.3 and row["other sentences after"] > 0.98
assert [row["p"] < 0.001 for row in halves["second"]] == [True, False, False]
assert all(row["weight beside a rival"] < 0.75 for row in halves["second"])

# %% [markdown]
# Now it shows. The head gives at least 97 percent of *it* to the first thing. Without it, three pronouns in ten or
# more go wrong where that was the answer, and hardly any where it was not. It is the head of a *default*. For the other
# quarter, no head is as sharp; only in the first model does removing the best one do harm. How the other two models
# find the second noun, these figures do not say: by several heads that can stand in for each other, perhaps.
#
# So do others stand in for the default's head? Remove the one, two and three encoder heads that look most at the
# antecedent, beside as many others drawn at random; and the encoder's best together with the decoder's.

# %%
print("encoder heads removed   look most   others (mean of 4 draws)")
for k in range(3):
    rows = [run["ablation"]["more: pronoun to antecedent, encoder"][k] for run in runs]
    after, others = (sum(row[key] for row in rows) / len(rows) for key in ("after", "others, mean"))
    print(f"{rows[0]['heads']:21d}   {after:9.1%}   {others:.1%}")
    assert after < 0.75 and others > 0.9
both = [run["ablation"]["encoder's and decoder's best"]["pronoun"] for run in runs]
print("the encoder's and the decoder's best:", *(f"{score:.1%}" for score in both))
assert all(score < row["after"] - 0.05 for score, row in zip(both, removed["pronoun to antecedent, encoder"]))

# %% [markdown]
# More heads of the encoder add little. The decoder's head, whose removal alone costs little or nothing, costs more when
# the encoder's is gone too: it can stand in for it. Removing one head at a time cannot see that.
#
# **What this shows, and what not.** A controlled corpus answers what one sentence cannot: the question has a right
# answer, the sentences are many, the distractor is known, and the removal is counted on the very words that should
# suffer. On this ground, heads link a verb with the distant word that completes it (Figure 3), and *it* with a noun that is
# mostly its antecedent (Figure 4); a head of the encoder that follows an article to its noun (Figure 5) is sharp in one of
# three models. The captions' caution is right as well. "Apparently involved in anaphora resolution" is what one sees; what
# the head does is less, and took a second kind of sentence to find.
#
# It says nothing about how often such heads occur in models of natural language, where what *it* refers to is seldom a
# matter of rules, and may be nothing at all. Our grammar has some five hundred words and one way to say a thing; first
# things are easy to find in it. The encoder has 8 heads, where the paper's has 48: the less a model has to spare, the
# more one head matters. And the paper's claim is about *its* model, which we do not have.

# %%
vocabulary = {word.text for sentence in sentences("train") for side in (sentence.english, sentence.german) for word in side}
print(len(vocabulary), "words, English and German")
assert 450 < len(vocabulary) < 550
assert (measured["model"]["N"] * measured["model"]["h"], 6 * 8) == (8, 48)  # heads of the encoder, here and in the base model

# %% [markdown]
# **Where.**
#
# - Code: `controlled_corpus.py`, `attention_shares.py` and `figures_3_to_5.py` in `annotated_transformer/experiments/`,
#   `mcnemar` in `annotated_transformer/experiments/figures_3_to_5/knock_out.py`.
# - Tests: `tests/experiments/test_controlled_corpus.py`, whose judge knows German from lists of its own;
#   `tests/experiments/test_attention_shares.py`; `tests/experiments/test_knock_out.py`.
# - Run it again: `python -m annotated_transformer.experiments.figures_3_to_5`, and with `--small` in seconds.
# - Exercise: {ref}`ex-viz-mcnemar`.

# %% [markdown]
# ## Are weights an explanation?
#
# **Question.** If a head gives a word 70 percent of its weight, did that word cause the output?
#
# Three reasons for doubt, each of which can be shown by a cell.
#
# **First: different weights, same output.** A head's output is $A_i V$, a row of $S$ weights times an $S \times d_v$
# matrix. With more keys than $d_v + 1$ there are vectors $n \ne 0$ with $n V = 0$ and entries that sum to 0. If $n$
# is so short that no entry of $A_i + n$ is negative, $A_i + n$ is another row of weights with the same output:
# nothing behind the head can tell the two apart {cite}`brunner2020identifiability`. Our $d_v$ is 32, and the sentence
# of Figure 3 has 49 tokens.

# %%
names = [f"encoder.layers.{i}.self_attention" for i in range(N)]
query = positions(spirit.keys, "making")[0]
layer, head = divmod(entropy(spirit.weights[:, :, query]).argmax().item(), h)  # the most spread head
inputs = {}
module = model.encoder.layers[layer].self_attention
hook = module.register_forward_hook(lambda module, args, output: inputs.update(x=args[0]))
with torch.inference_mode():
    model.encode(torch.tensor([[*tokenizer.encode(SPIRIT), model.config.eos_id]]))
    V = module.keys_and_values(inputs["x"])[1][0, head].double()
hook.remove()
alpha = spirit.weights[layer, head, query].double()
assert V.shape == (49, 32)

# %% [markdown]
# The vectors $n$ are the null space of $V$ with a column of ones added. Of a thousand random directions in it, we go
# along each until the first weight would become negative, and keep the row that differs most.

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
constraints = torch.cat([V, torch.ones(49, 1, dtype=torch.float64)], dim=1).T  # (33, 49)
null_space = torch.linalg.svd(constraints).Vh[33:]  # 16 vectors that it sends to zero
directions = torch.randn(1000, len(null_space), dtype=torch.float64) @ null_space
steps = torch.where(directions < 0, -alpha / directions, math.inf).min(dim=1).values
others = alpha + steps[:, None] * directions
moved = 0.5 * (others - alpha).abs().sum(dim=1)
other = others[moved.argmax()]
print(f"layer {layer + 1}, head {head + 1}: {moved.max():.1%} of the weight lies elsewhere, the output is the same")
assert (other > -1e-12).all() and abs(other.sum() - alpha.sum()) < 1e-9
assert_close(other @ V, alpha @ V)
assert moved.max() > 0.001

# %% [markdown]
# For sentences of up to $d_v + 1$ tokens with values in general position, the weights *are* determined by the output.
# So this doubt grows with the length of the text, and with a small $d_v$.
#
# **Second: a weight is not a contribution.** What reaches the output is $A_{ij}\, v_j W^O$. A large weight on a short
# vector is little. {cite:t}`kobayashi2020attention` measure lengths instead of weights, and the attention to
# separators and full stops in BERT all but disappears. Exercise {ref}`ex-viz-norms` does it here.
#
# **Third: a token is not its word.** From the second layer on, the vector at a position is no longer the embedding of
# the word that stands there: the other words have added to it. How much does the encoder's output at one position
# change if the word at *another* is replaced?

# %%
one, two = (torch.tensor([[*tokenizer.encode(f"Tom sold his car because it was {word}."), model.config.eos_id]])
            for word in ("old", "new"))
assert one.shape == two.shape and (one != two).sum() == 1
with torch.inference_mode():
    difference = (model.encode(one) - model.encode(two)).norm(dim=-1)[0] / model.encode(one).norm(dim=-1)[0]
changed = (one != two)[0]
assert difference[changed].item() == difference.max()
assert (difference[~changed] > 0).all()

# %% mystnb={"image": {"alt": "Bar chart: relative change of the encoder's output at each of the eleven tokens when old is replaced by new. The bar at the replaced word is the highest; every other token has a bar too."}, "figure": {"caption": "*old* is replaced by *new*: relative change of the encoder's output at each position.", "name": "fig-viz-mixed"}}
pieces = tokenizer.pieces(one[0].tolist())
ax = plt.subplots(figsize=(5, 2.4), layout="constrained")[1]
ax.bar(range(len(pieces)), difference, color=[PALETTE[1] if c else PALETTE[0] for c in changed])
ax.set_xticks(range(len(pieces)), labels=pieces, rotation=45)
ax.set_ylabel("relative change")
plt.show()

# %% [markdown]
# The change is largest at the word's own position, and it has reached every other. So a weight on position $j$ in
# layer 3 is a weight on a vector to which the whole sentence has contributed, and the weight does not say which part
# of that vector the head reads. **Attention rollout** {cite}`abnar2020quantifying` multiplies the
# layers' weights to trace where it came from ({ref}`ex-viz-rollout`); it is a better guess, and still a guess.
#
# ### What is known
#
# - {cite:t}`jain2019attention`, on recurrent classifiers with attention: weights often disagree with measures of
#   importance by gradients or by removal, and quite different weights can give the same prediction. Title: *Attention
#   is not Explanation*.
# - {cite:t}`wiegreffe2019attention` answer that such other weights must be ones that a *model* could have learned,
#   all heads and words at once, and that whether attention explains depends on what one calls an explanation: a
#   plausible one, or a faithful one. Title: *Attention is not not Explanation*.
# - {cite:t}`clark2019what`: in BERT, single heads find certain grammatical relations and coreference well, measured
#   over a treebank and against simple baselines; most heads look at separators, neighbours, or everything.
# - {cite:t}`voita2019analyzing` and {cite:t}`michel2019sixteen`: many heads of a trained model can be removed at
#   little cost.
# - {cite:t}`brunner2020identifiability` and {cite:t}`kobayashi2020attention`: weights alone are neither unique nor
#   the whole contribution.
#
# What is *not* known is how to read the computation of a trained Transformer in general. Pictures of attention are a
# good way to find a mistake in a mask, to form a hypothesis, and to see that heads differ. A hypothesis is then
# tested: with a control, with a minimal pair, by removal. That was the order of this chapter.

# %% [markdown]
# ## Exercises
#
# ```{exercise} Predict the shapes
# :label: ex-viz-shapes
#
# A batch has 2 sentences; the sources have 7 tokens, the targets' inputs 5, and the model is the paper's base model.
# How many entries has the dictionary of `record_attention`, of which shapes? How many rows that sum to 1 are there in
# all?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# $N = 6$, $h = 8$, three attentions, of which one goes from target to source.
# ```
#
# ```{solution} ex-viz-shapes
# :class: dropdown
#
# 18: six of $(2, 8, 7, 7)$, six of $(2, 8, 5, 5)$ and six of $(2, 8, 5, 7)$. Rows:
# $6 \cdot 2 \cdot 8 \cdot (7 + 5 + 5) = 1632$.
# ```

# %% tags=["hide-cell"]
from annotated_transformer import ModelConfig, Transformer

base = Transformer(ModelConfig.base(vocab_size=50))
with record_attention(base) as found, torch.inference_mode():
    base(torch.randint(3, 50, (2, 7)), torch.randint(3, 50, (2, 5)))
shapes = [tuple(A.shape) for A in found.values()]
assert {shape: shapes.count(shape) for shape in shapes} == {(2, 8, 7, 7): 6, (2, 8, 5, 5): 6, (2, 8, 5, 7): 6}
assert sum(A[..., 0].numel() for A in found.values()) == 1632

# %% [markdown]
# ```{exercise} Which way round?
# :label: ex-viz-axes
#
# Somebody hands you a square matrix of attention weights and does not know which axis is which. Write
# `queries_are_rows(A)`. For which matrices can nobody tell?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# What sums to 1?
# ```
#
# ```{solution} ex-viz-axes
# :class: dropdown
#
# Compare the sums of the rows and of the columns with 1. If both are 1 (a *doubly stochastic* matrix, such as even
# weights, or a head that always looks at the token itself), the sums cannot tell.
# ```

# %% tags=["hide-cell"]
def queries_are_rows(A):
    rows, columns = ((A.sum(axis) - 1).abs().max() for axis in (1, 0))
    assert (rows < 1e-4) != (columns < 1e-4), "cannot tell"
    return bool(rows < 1e-4)

for A_head in encoder.weights.flatten(0, 1):
    assert queries_are_rows(A_head) and not queries_are_rows(A_head.T)
try:
    queries_are_rows(torch.eye(3))
except AssertionError as error:
    print(error)
else:
    raise AssertionError("the identity told its rows from its columns")

# %% [markdown]
# ```{exercise} How spread can it be?
# :label: ex-viz-entropy
#
# What is the largest entropy of row $i$ (counted from 1) of a *causal* head, in bits? What is the largest mean over
# the rows of a sentence of 8 tokens, and why is it wrong to compare it with an encoder head's?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Row $i$ sees $i$ keys.
# ```
#
# ```{solution} ex-viz-entropy
# :class: dropdown
#
# $\log_2 i$. The mean for 8 tokens is $\frac{1}{8} \log_2 8! = 1.912$ bits, against 3 for an encoder head: early rows
# have little to choose from. Divide by the largest possible value before you compare.
# ```

# %% tags=["hide-cell"]
causal = torch.ones(8, 8).tril()
causal = causal / causal.sum(-1, keepdim=True)
assert_close(entropy(causal), torch.arange(1, 9).float().log2())
assert_close(entropy(causal).mean().item(), math.log2(math.factorial(8)) / 8)
print(f"{entropy(causal).mean():.3f}")

# %% [markdown]
# ```{exercise} The best of a crowd
# :label: ex-viz-control
#
# Take a model that was never trained. Search its 18 encoder heads for the one whose *its* looks most at *Law*. By how
# much does its share exceed that of an even spread? What does that say about "we found a head that ..."?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# `Transformer(model.config)` has random weights; `explore_attention` takes any model.
# ```
#
# ```{solution} ex-viz-control
# :class: dropdown
#
# The best of 18 random heads has about three times the even share, though the model knows nothing. So "three times an
# even share" is no evidence by itself. A find counts from where it exceeds what a search among as many heads gives *without* the thing to be found: in an untrained model, and in
# the same model for unrelated words.
# ```

# %% tags=["hide-cell"]
torch.manual_seed(0)
untrained = explore_attention(Transformer(model.config), tokenizer, LAW, kinds=["encoder"]).maps[0]
found = share(untrained, "its", ["Law"])
even = len(positions(untrained.keys, "Law")) / len(untrained.keys)
assert found.max() > 2 * even
print(f"even {even:.4f}, best of 18: {found.max():.4f}")

# %% [markdown]
# ```{exercise} Off by one
# :label: ex-viz-offset
#
# A library gives you decoder weights whose rows are labelled with the *predicted* tokens, another with the tokens
# that are *read*. In the last layer, which labels make the encoder-decoder picture look like an alignment? Count how
# often the strongest key of the mean over heads is the human's, for both, in each layer.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Give `hits` maps whose `weights` are averaged over axis 1, with `keepdim=True`.
# ```
#
# ```{solution} ex-viz-offset
# :class: dropdown
#
# The predicted ones: in the last layer, the strongest key of a row translates the token to come. See what the cell
# prints for the first layer.
# ```

# %% tags=["hide-cell", "nbval-ignore-output"]
from dataclasses import replace

averaged = [replace(maps, weights=maps.weights.mean(1, keepdim=True)) for maps in crosses]
scores = {name: torch.cat([hits(maps, text, offset) for maps, (*_, text) in zip(averaged, ALIGNED)]).double().mean(0)[:, 0]
          for name, offset in (("predicted", -1), ("read", 0))}
for name, score in scores.items():
    print(f"{name:9s}", " ".join(f"layer {i + 1}: {s:.0%}" for i, s in enumerate(score)))
assert scores["predicted"][-1] > scores["read"][-1]

# %% [markdown]
# ```{exercise} A decoder that cannot see
# :label: ex-viz-blind
#
# Knock out all heads of encoder-decoder attention. What kind of model is left? Predict how its output depends on the
# source, and show it. What does the loss become?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# The residual connection carries the target's vectors on. What carries the source's?
# ```
#
# ```{solution} ex-viz-blind
# :class: dropdown
#
# A language model of German: nothing of the source reaches the decoder, so the logits are the same for *every*
# source. The loss rises to that of guessing the next token from those before it, by a model that was never trained to
# do without the source.
# ```

# %% tags=["hide-cell"]
cross_heads = [(layer.cross_attention, i) for layer in model.decoder.layers for i in range(h)]
with knocked_out(*cross_heads), torch.inference_mode():
    logits = model(batch.source, batch.target_in)
    assert_close(logits, model(batch.source.flip(0), batch.target_in))
    blind = loss() - whole
with torch.inference_mode():
    assert not torch.allclose(model(batch.source, batch.target_in), model(batch.source.flip(0), batch.target_in), atol=0.1)
assert blind > 1

# %% [markdown]
# ```{exercise} Lost and won
# :label: ex-viz-mcnemar
#
# A head is removed. Of 1,000 pronouns, 12 that were right are wrong now, and 2 that were wrong are right. Is that more
# than chance? Compute McNemar's $p$ by hand. How does the answer change if 105 are lost and 95 won, which is the same
# difference of 10?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# Throw a coin for each of the 14 answers that changed. How likely are 2 heads or fewer, or 12 or more?
# ```
#
# ```{solution} ex-viz-mcnemar
# :class: dropdown
#
# $2 \cdot (1 + 14 + 91) / 2^{14} = 212 / 16384 = 0.013$: hardly chance. With 105 and 95, $p$ is about one half: among 200
# throws, a difference of 10 is nothing. The accuracy is the same in both cases, so accuracies alone cannot tell.
# ```

# %% tags=["hide-cell"]
def changed(lost, won, n=1000):
    """Answers before and after, with so many lost and won."""
    before, after = torch.ones(n, dtype=torch.bool), torch.ones(n, dtype=torch.bool)
    before[:won], after[won:won + lost] = False, False
    return before, after

assert_close(mcnemar(*changed(12, 2)), 2 * (1 + 14 + 91) / 2**14)
assert 0.4 < mcnemar(*changed(105, 95)) < 0.6
print(f"{mcnemar(*changed(12, 2)):.4f} {mcnemar(*changed(105, 95)):.4f}")

# %% [markdown]
# ```{exercise} Lengths instead of weights
# :label: ex-viz-norms
#
# For one sentence, compute $\lVert A_{ij}\, v_j W_i^O \rVert$ for every query and key of each encoder head. What
# share of the lengths does the end of the sentence get, and what share of the weights? Does the result support "a
# head that looks at eos rests"?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# $A_{ij}$ is a positive number, so it comes out of the norm. You need the input of each module: a forward hook.
# ```
#
# ```{solution} ex-viz-norms
# :class: dropdown
#
# Compare the two shares that the cell prints for each layer. Where that of the lengths is well below that of the
# weights, what eos hands on is shorter than what a word does, which supports the reading. Where it is not, the head
# adds something when it looks at eos. That need not be information: in layer 1, eos is still its own embedding plus
# its position, so every query that looks there gets one and the same vector, which says nothing of the words.
# Removing the head decides. The check that makes the measure worth having: the contributions sum to the module's
# output.
# ```

# %% tags=["hide-cell", "nbval-ignore-output"]
for number, layer in enumerate(model.encoder.layers):
    module, seen = layer.self_attention, {}
    hook = module.register_forward_hook(lambda module, args, output, seen=seen: seen.update(x=args[0], output=output))
    with torch.inference_mode():
        model.encode(source)
        v = module.keys_and_values(seen["x"])[1][0]  # (h, S, d_v)
        handed = torch.einsum("hsk,dhk->hsd", v, module.W_O.weight.unflatten(1, (h, -1)))
        A_layer = encoder.weights[number]
        assert_close(torch.einsum("hls,hsd->ld", A_layer, handed), seen["output"][0])
    hook.remove()
    lengths = A_layer * handed.norm(dim=-1)[:, None]
    of_lengths, of_weights = ((x[:, :-1, -1] / x[:, :-1].sum(-1)).mean() for x in (lengths, A_layer))
    print(f"layer {number + 1}: eos has {of_weights:.0%} of the weights, {of_lengths:.0%} of the lengths")

# %% [markdown]
# ```{exercise} Rollout
# :label: ex-viz-rollout
#
# Attention rollout mixes each layer's mean weights with the residual path, $\hat A = \frac{1}{2} (A + I)$, and
# multiplies the layers: $\hat A_N \cdots \hat A_1$. Show that its rows sum to 1. Name two things that it leaves out.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# If $A\mathbf{1} = \mathbf{1}$ and $B\mathbf{1} = \mathbf{1}$, what is $AB\mathbf{1}$?
# ```
#
# ```{solution} ex-viz-rollout
# :class: dropdown
#
# $AB\mathbf{1} = A\mathbf{1} = \mathbf{1}$. It leaves out the values and $W^O$ (how long each contribution is, and
# whether two cancel), the feed-forward layers and layer norms, and that heads differ: it takes their mean. And one
# half for the residual path is a convention.
# ```

# %% tags=["hide-cell"]
rollout = torch.eye(len(encoder.keys))
for A_layer in encoder.weights.mean(1):
    rollout = 0.5 * (A_layer + torch.eye(len(A_layer))) @ rollout
assert_close(rollout.sum(-1), torch.ones(len(rollout)))
assert (rollout > 0).all()
assert (rollout.diagonal() >= 0.5**N - 1e-6).all()  # the residual path alone

# %% [markdown]
# ## What to remember
#
# - `record_attention` gives every head's weights; rows are queries, columns are keys, rows sum to 1 (equation
#   {eq}`viz-weights`). A decoder's row reads one token and predicts the next.
# - A head found by searching needs a control: the same search where there is nothing to find. A minimal pair tests a
#   reading of a picture; one sentence does not.
# - Entropy, shares and distance profiles describe all heads on many sentences (equation {eq}`viz-entropy`); what
#   rests on the end of the sentence may be attention with nothing to do.
# - Removing a head is a slice of $W^O$ set to zero (equation {eq}`viz-sum`). Most single heads cost little, and the
#   encoder-decoder attention costs most.
# - In a controlled corpus it is known what a head should look at, so its share (equation {eq}`viz-share`) and the cost
#   of removing it can be measured. Some heads with a large share are needed, others are not.
# - Weights are not explanations by themselves: other weights can give the same output, a weight is not a
#   contribution, and a position is not its word.
