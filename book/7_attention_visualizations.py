# %% [markdown]
# # 7 Attention visualizations
#
# *The paper's appendix {cite}`vaswani2017attention`: Figures 3, 4 and 5 on a model of our own, every head to play with,
# and how far we may trust such pictures.*
#
# Section 4 of the paper ends with a promise: "As side benefit, self-attention could yield more interpretable models." Its
# evidence is the three figures of the appendix, the best known pictures of the Transformer and the most often
# over-interpreted. When you have read this chapter you can
#
# - record the weights of every head, and say which axis is which;
# - find a head that does what Figure 3 or 4 shows, and test the find with a control;
# - describe all heads by numbers, remove one, and measure what the model loses;
# - say why a weight falls short of an explanation.
#
# You need [3.2 Attention](3_2_attention.ipynb), above all the multi-head equation. The paper's section 7, its conclusion,
# is discussed in [After the paper](after_the_paper.ipynb).

# %% tags=["remove-cell"]
import math
import random
import textwrap

import torch
from torch.testing import assert_close

from annotated_transformer import Transformer, Translator, corpus, load_model, make_batch, perplexity, record_attention
from annotated_transformer.data.batching import pad_source
from lab.experiments.result_file import read_result
from lab.explorer import explore_attention
from annotated_transformer.extras.attention_views.report import as_table
from annotated_transformer.extras.attention_views.knock_out import heads_of, knocked_out

# %% tags=["remove-cell"]
from statistics import median

from lab.display import Table, use_style
from lab.pictures import attention as attention_pictures

use_style()

# %% [markdown]
# ## What the paper shows, and what it says
#
# All three figures show encoder self-attention in layer 5 of 6. The words appear twice, and the lines between them are
# the weights: the darker a line, the larger the weight, and one colour is one head. Here are all three captions in full.
#
# > **Figure 3** reads "An example of the attention mechanism following long-distance dependencies in the encoder
# > self-attention in layer 5 of 6. Many of the attention heads attend to a distant dependency of the verb 'making',
# > completing the phrase 'making...more difficult'. Attentions here shown only for the word 'making'. Different colors
# > represent different heads. Best viewed in color."
# >
# > **Figure 4** reads "Two attention heads, also in layer 5 of 6, apparently involved in anaphora resolution. Top: Full
# > attentions for head 5. Bottom: Isolated attentions from just the word 'its' for attention heads 5 and 6. Note that the
# > attentions are very sharp for this word."
# >
# > **Figure 5** reads "Many of the attention heads exhibit behaviour that seems related to the structure of the sentence. We
# > give two such examples above, from two different heads from the encoder self-attention at layer 5 of 6. The heads
# > clearly learned to perform different tasks."
#
# **Anaphora** is the use of a word that refers back to another; here *its* means *the Law's*. The captions move between
# caution ("apparently", "seems") and confidence ("clearly learned"), and we shall test both. They leave open how the
# heads and sentences were chosen, and in how many other sentences the same heads do the same.

# %% [markdown]
# ## Our model, and whether its attention is at work
#
# We put the same questions to the model in `book/model`: three layers of four heads, trained on everyday sentences, English
# and German ([6.1](6_1_translation.ipynb)). First we let it read the paper's two sentences.

# %% tags=["nbval-ignore-output"]
model, tokenizer = load_model("model")
N, h = model.config.N, model.config.h
SPIRIT = ("It is in this spirit that a majority of American governments have "
          "passed new laws since 2009 making the registration or voting "
          "process more difficult.")
LAW = ("The Law will never be perfect, but its application should be just "
       "- this is what we are missing, in my opinion.")
print(" ".join(tokenizer.pieces(tokenizer.encode(SPIRIT))[:17]), "...")
for translation in Translator(model, tokenizer).translate([SPIRIT, LAW]):
    print(textwrap.fill(translation, 94))
assert N * h == 12

# %% [markdown]
# With a vocabulary of 4,800, rare words are cut into syllables and letters (▁ marks a space). The translations say
# roughly "It is in this spirit that a majority of the American governments of the American registrations have passed
# away, since 2009 the registration or a difficult performance more" and "The *Law* will never be perfect, but the job
# application should be simple. That is what we are missing, in my opinion." In politics the model is out of its depth,
# so let us ask what its attention is worth where it is at home, on everyday sentences. What we measure below we measure
# on sentences of the validation split, which share no sentence with the training data.

# %%
held_out = corpus.load("tatoeba-en-de", "valid")
print(len(held_out), "pairs, such as:", *held_out[0], sep="  ")

# %% [markdown]
# The **entropy** of a head's weights says, in bits, how sharp the head is:
#
# $$
# H(A_i) = -\sum_j A_{ij} \log_2 A_{ij}
# $$ (viz-entropy)
#
# It is 0 if one key has everything and $\log_2 S$ if all $S$ keys have the same; a head with 2 bits is as spread as one
# that looks at four keys evenly. `annotated-transformer inspect` prints the entropy, the weight on the first key (`<s>`
# in the decoder's self-attention, a word elsewhere) and on the last (`</s>` of the source; in the decoder's
# self-attention the query itself), the spread of the scores before the softmax, all as medians over the heads, and what
# is lost when the layer's heads add nothing: nats per target token, and BLEU. Here is its report on the 1,000 sentences
# of the test split, stored with the model's scores.

# %%
report = read_result("results/visitors.json")["records"][0]["at_work"]
print(as_table(report))

# %% [markdown]
# The lines "all" tell us most. Without the encoder's self-attention more than half of the BLEU is gone: an English word
# alone is not enough to translate it. No single layer can be spared without losing 1 BLEU, and the median heads of the
# encoder are neither blurred nor frozen on one token; they use between 1 and 2 bits of the 3.7. So the pictures below come
# from a model that *needs* its encoder's attention. (How much it needs each head we measure below.) That cannot be
# taken for granted. The book's first model, trained at a higher rate and from other initial values, drew pictures that
# looked as convincing, and lost only a tenth of its BLEU without all of these heads. [5.3](5_3_optimizer.ipynb) shows what
# such a rate and such initial values do to attention.

# %% tags=["hide-cell"]
whole, lost = report["whole"]["bleu"], {name: part["bleu"] for name, part in report["without"].items()}
assert lost["encoder"] > whole / 2
assert min(layer["bleu"] for layer in report["layers"]) > 1
assert all(1 < median(layer["entropy"]) < 2 for layer in report["layers"][:N]) and round(report["layers"][0]["uniform"], 1) == 3.7

# %% [markdown]
# ## Recording and reading the weights
#
# For one head, with queries from $x$ and keys from $m$ (for self-attention, $m = x$), the picture shows
#
# $$
# A = \mathrm{softmax}\left(\frac{(x\,W^Q)(m\,W^K)^\top}{\sqrt{d_k}}\right),
# \qquad
# \sum_j A_{ij} = 1
# $$ (viz-weights)
#
# $A_{ij}$ is the share that query $i$ gives to key $j$: queries are rows, keys are columns, and rows sum to 1. The fused
# kernel never returns $A$, so `record_attention` hooks in: before each attention module runs, it computes equation
# {eq}`viz-weights` from the module's own inputs. The model's output stays as it is.

# %%
source_text = "Tom sold his car because it was old."
target_text = "Tom verkaufte sein Auto, weil es alt war."
source = torch.tensor([[*tokenizer.encode(source_text), model.config.eos_id]])
target_in = torch.tensor([[model.config.bos_id,
                           *tokenizer.encode(target_text)]])
with record_attention(model) as weights, torch.inference_mode():
    model(source, target_in)
for name, A in list(weights.items())[::4]:
    sums = [A.sum(axis)[0, 0] for axis in (3, 2)]
    print(f"{name:34s} {tuple(A.shape)}  rows sum to {sums[0].min():.2f} to "
          f"{sums[0].max():.2f}, "
          f"columns to {sums[1].min():.2f} to {sums[1].max():.2f}")

# %% [markdown]
# The sums tell the axes apart, which helps, because a heat map carries no arrow. A column's sum has a
# meaning of its own: how much attention a key gets from all queries together. In the decoder the mask helps as well: the
# empty triangle must lie *above* the diagonal. (A test of the package checks that weights times values, times $W^O$, are
# what the module puts out.)

# %% tags=["remove-cell"]
assert len(weights) == 3 * N
assert all(torch.allclose(A.sum(-1), torch.ones(A.shape[:-1])) for A in weights.values())
encoder_A, decoder_A = weights["encoder.layers.1.self_attention"][0, 0], weights["decoder.layers.0.self_attention"][0, 0]
assert (decoder_A.triu(1) == 0).all() and (encoder_A.sum(dim=0) - 1).abs().max() > 0.05

# %% [markdown]
# (section-viz-explorer)=
# ## Every head, to play with
#
# The model has $3 \cdot 3 \cdot 4 = 36$ heads, and the paper shows a handful. With `explore_attention` we see all of ours.
# Choose an attention, a layer and a head; point at a query, and the lines and numbers show where it looks. With the
# keyboard, Tab goes from control to control and then to the queries; there, the arrows up and down choose the query, left
# and right the head.

# %% tags=["nbval-ignore-output"]
explorer = explore_attention(model, tokenizer, source_text, target_text,
                             kinds=["cross", "encoder", "decoder"], layer=3)
explorer

# %% tags=["hide-cell"]
for maps, name in zip(explorer.maps, ("decoder.layers.{}.cross_attention", "encoder.layers.{}.self_attention",
                                      "decoder.layers.{}.self_attention")):
    assert maps.weights.shape[:2] == (N, h)
    for layer in range(N):
        assert torch.equal(maps.weights[layer], weights[name.format(layer)][0])

# %% [markdown]
# Take a few minutes before you read on. Is there a head that looks at one neighbour of each token, or at `</s>` whatever
# the query is? Which encoder-decoder heads join *es* and *it*? Ask of each find: would I have noticed its absence?

# %% [markdown]
# ## Figure 3: a distant dependency
#
# Does one of our heads connect *making* with *more difficult*? From here on we look at whole words: a word's weight *as a
# key* is the sum over its tokens, and *as a query* the mean.

# %% tags=["hide-cell"]
def groups(tokens):
    """The positions of each word: it starts with a space, and punctuation is a word of its own."""
    starts = [i for i, token in enumerate(tokens) if i == 0 or not token.isalnum()]
    return [list(range(start, end)) for start, end in zip(starts, [*starts[1:], len(tokens)])]

def by_word(maps, queries):
    """Words of the queries, words of the keys, and weights (N, h, query words, key words)."""
    rows, columns = groups(queries), groups(maps.keys)
    of_keys = torch.stack([maps.weights[..., column].sum(-1) for column in columns], -1)
    both = torch.stack([of_keys[:, :, row].mean(2) for row in rows], 2)
    words = [["".join(side[i] for i in word).strip("▁") for word in found]
             for side, found in ((queries, rows), (maps.keys, columns))]
    return *words, both

# %% tags=["hide-cell"]
def read(text, model=model):
    """The words of a sentence, and the encoder's weights between them."""
    maps = explore_attention(model, tokenizer, text, kinds=["encoder"]).maps[0]
    return by_word(maps, maps.queries)[1:]

def numbered(share):
    """The largest of (N, h) shares; its layer and head from 0; and "layer 2, head 1" as the paper counts."""
    layer, head = divmod(share.argmax().item(), h)
    return share.max().item(), layer, head, f"layer {layer + 1}, head {head + 1}"

# %% tags=["hide-cell"]
def fresh(seed):
    torch.manual_seed(seed)
    return Transformer(model.config).eval()

untrained = [fresh(seed) for seed in range(20)]
assert groups(["▁a", "▁m", "ak", "ing", "."]) == [[0], [1, 2, 3], [4]]

# %% tags=["row-F3"]
words, W = read(SPIRIT)
making, more = words.index("making"), words.index("more")
found_3, layer, head, name_3 = numbered(W[:, :, making, more:more + 2].sum(-1))
print(f"making -> more difficult: {name_3} gives {found_3:.2f}, "
      f"even weights would give {2 / len(words):.2f}")
assert words[more + 1] == "difficult" and found_3 < 2.5 / len(words)

# %% mystnb={"image": {"alt": "Two rows of the words of the sentence, queries above and keys below. Coloured lines, one colour for each of four heads of a layer, go down from making. More and difficult are in bold."}, "figure": {"caption": "The paper's Figure 3 in our encoder: where *making* looks, in the four heads of the layer whose best head gives most to *more difficult*. Queries above, keys below; weights of less than 0.1 are left out, here and below.", "name": "fig-viz-spirit"}} tags=["hide-input"]
attention_pictures.heads_of_layer(words, W, layer, making, ("making", "more", "difficult"))

# %% [markdown]
# No line reaches *more difficult*. Is what the best head gives to the two words together a lot? We
# *searched* for this head, and the largest of 12 numbers is large even where there is nothing to find. So here are two
# controls: the same search for every query of the sentence and every two neighbouring words at least as far away as
# *more* is from *making*; and the same search in twenty models that were never trained, because one of them would be a
# single draw.

# %%
def searches(W, width, far):
    """The best head's share, for all queries and `width` words so far away."""
    L = W.size(-1) - 1  # the end of the sentence is left out
    return torch.tensor([W[:, :, i, j:j + width].sum(-1).max()
                         for i in range(L) for j in range(L - width + 1)
                         if i - j - width + 1 >= far or j - i >= far])

def verdict(share, control):
    as_good = (control >= share).double().mean().item()
    word = "no evidence" if as_good > 0.05 else "worth a closer look"
    return f"{as_good:.0%} of {len(control)} searches do as well: {word}"

print(f"making -> more difficult: {name_3} gives {found_3:.2f}.",
      verdict(found_3, searches(W, 2, more - making)))

# %%
def of_twenty(text, share):
    """What the best head of each untrained model gives: range and median."""
    best = sorted(share(read(text, one)[1]).max().item() for one in untrained)
    return (f"in 20 untrained models {best[0]:.2f} to {best[-1]:.2f}, "
            f"median {median(best):.2f}")

print("making -> more difficult:",
      of_twenty(SPIRIT, lambda A: A[:, :, making, more:more + 2].sum(-1)))

# %% [markdown]
# The best head gives the two words hardly more than even weights would, and many more searches than one in twenty find
# as much. So it proves nothing. Every "head that does X" needs such a control; the paper gives none. The effect may well
# be real in its model, which had 4.5 million pairs to learn from.

# %% [markdown]
# ## Figure 4: what a pronoun refers to
#
# How much does *its* look at *Law*? We print the best share that any head gives to *Law*, and draw the layer of the
# head that gives most to any one word beside *its* itself.

# %% tags=["row-F4"]
words, W = read(LAW)
its, law, application = (words.index(word)
                         for word in ("its", "Law", "application"))
found_4, *_, name_law = numbered(W[:, :, its, law])
elsewhere = W[:, :, its].index_fill(-1, torch.tensor(its), 0.0)
sharpest, layer_4, head_4, name_4 = numbered(elsewhere.amax(-1))
print(f"its -> Law: at most {found_4:.2f} ({name_law});",
      of_twenty(LAW, lambda A: A[:, :, its, law]))
print(f"sharpest: {name_4} gives {sharpest:.2f} to "
      f"{words[elsewhere[layer_4, head_4].argmax()]}")
assert (sharpest > 5 * found_4
        and elsewhere[layer_4, head_4].argmax() == application)

# %% mystnb={"image": {"alt": "Two rows of the words of the sentence with coloured lines from its to the keys below, one colour for each of four heads of the last layer. Law and application are in bold; a thick line of one head goes to application, thinner ones of the others to but, to application and to the end of the sentence, and none to Law."}, "figure": {"caption": "The paper's Figure 4 in our encoder: where *its* looks, in the four heads of the layer that holds the sharpest one.", "name": "fig-viz-law"}} tags=["hide-input"]
attention_pictures.heads_of_layer(words, W, layer_4, its, ("its", "Law", "application"))

# %% [markdown]
# The picture is as sharp as the paper's, and shows something else. Our *its* looks at what is owned, the *application*,
# and hardly at the owner: even the median untrained model has a head that gives *Law* more than our best head does. (The
# luckiest of the twenty gives it a third. Had we drawn that one alone, we would have told a stronger story.) So a large
# share of one word in one sentence says little by itself. Does the same head do this in other sentences? We take eight
# with *its*, in which we know the owner and the thing, and the same searches in the untrained models as a control.

# %% tags=["hide-cell"]
OWNED = {"The old house has lost its roof.": "house roof", "The dog lost its ball.": "dog ball",
         "The tree has lost its leaves.": "tree leaves", "This city is known for its old bridges.": "city bridges",
         "The company sold its new building.": "company building", "The bird broke its wing.": "bird wing",
         "The house is old, but its garden is beautiful.": "house garden",
         "The car is new, but its windows are broken.": "car windows"}

def shares_of_its(of):
    """For each sentence, what each head's its gives to the owner and to the thing: (8, 2, N, h)."""
    found = []
    for text, names in OWNED.items():
        words, A = read(text, of)
        found.append(torch.stack([A[:, :, words.index("its"), words.index(name)] for name in names.split()]))
    return torch.stack(found)

# %%
its_gives = shares_of_its(model)
controls = torch.stack([shares_of_its(one).mean(0).amax((1, 2))
                        for one in untrained])
owner, thing = its_gives[:, :, layer_4, head_4].mean(0).tolist()
print(f"{name_4}, in eight other sentences: {thing:.2f} to the thing, "
      f"{owner:.2f} to the owner")
for best, name in zip(controls.T, ("owner", "thing")):
    print(f"the best head of each untrained model: {best.min():.2f} to "
          f"{best.max():.2f} to the {name}, median {best.median():.2f}")
print(f"the best head for the owner: {its_gives.mean(0)[0].max():.2f}")
of_the = [A[layer_4, head_4, 0, words.index(names.split()[0])]
          for text, names in OWNED.items() for words, A in [read(text)]]
print(f"{name_4}, from The or This to its noun: {sum(of_the) / 8:.2f}")
for text in reversed([*OWNED][3:5]):
    print(text, "->", *Translator(model, tokenizer).translate([text]))

# %% mystnb={"image": {"alt": "Pairs of horizontal bars for nine sentences: the share that one head's its gives to the thing owned, mostly long, and to the owner, short everywhere."}, "figure": {"caption": "What *its* gives to the thing and to its owner, in the head that was found in the sentence about the Law (first pair of bars).", "name": "fig-viz-control"}} tags=["hide-input", "row-F4"]
bars = {"The Law ... its application": W[layer_4, head_4, its, [law, application]],
        **{text: found[:, layer_4, head_4] for text, found in zip(OWNED, its_gives)}}
attention_pictures.viz_control(name_4, bars)
assert thing > controls[:, 1].max() and thing > 3 * owner and (its_gives[:, 1, layer_4, head_4] > 0.5).sum() >= 6


# %% [markdown]
# The finding holds in all of the eight, more weakly for *the company* (0.45). German
# tells us what it is good for: the *ending* of *sein-* agrees with the thing (*seine Anwendung*, *sein Dach*), so
# whoever translates *its* must look there. From *The* and *This* the same head gives nearly everything to the noun: it
# joins a determiner to its noun, and *der*, *die* or *das* depends on that noun too. The *stem* of *sein-* depends on
# the owner: what belongs to a feminine noun such as *Firma* or *Stadt* is *ihr*. No head looks at the owner more than
# those of untrained models do, and of the two translations above one is right (*ihr*) and the other wrong (*seine*). So
# the head follows grammar, and is no evidence of anaphora. Had we searched only for *Law*, we would have found nothing; had
# we trusted one sharp picture, we might have told the wrong story about it.

# %% [markdown]
# ## A minimal pair tests a reading
#
# The most often shown example comes from a later article by one of the authors {cite}`uszkoreit2017transformer`: *The
# animal didn't cross the street because it was too tired.* Change one word to *wide*, and *it* means the street. Such a
# **minimal pair** is a far better instrument than one sentence: if a head follows what *it* means, its weight must
# move. In the article it does, in one of eight heads of the last encoder layer. For each noun we take our best head in
# the first sentence, among layers 2 and 3, and count a change of more than 0.1 as a move. (In layer 1 a head cannot
# pass: there the vectors of *it*, *animal* and *street* have not yet been mixed with the last word.)

# %% tags=["row-F7", "nbval-ignore-output"]
TEXT = "The animal didn't cross the street because it was too {}."
pair = {last: read(TEXT.format(last)) for last in ("tired", "wide")}
words, best = pair["tired"][0], {}
it, late = words.index("it"), torch.arange(N)[:, None] > 0  # layers 2 and 3
for noun in ("animal", "street"):
    place = words.index(noun)
    tired, wide = (late * A[:, :, it, place] for _, A in pair.values())
    _, layer, head, name = numbered(tired)
    best[f"{name} (best for {noun})"] = layer, head
    largest, *at, moved = numbered((wide - tired).abs())
    print(f"it -> {noun}: {name}: "
          f"{tired[layer, head]:.2f} (tired), {wide[layer, head]:.2f} (wide); "
          f"largest move {largest:.2f}, {moved}")
best[f"{moved} (moves most)"] = tuple(at)
assert pair["wide"][0] != words and largest < 0.1

# %% mystnb={"image": {"alt": "Two drawings of two rows of words with lines from it, for the sentences with tired and with wide. Blue lines are the head that looks most at animal, orange lines the head that looks most at street, green lines the head that moves most."}, "figure": {"caption": "The minimal pair in our encoder: the lines of *it* in the best head for *animal* and the best head for *street*, chosen in the first sentence, and in the head that moves most.", "name": "fig-viz-pair"}} tags=["hide-input"]
attention_pictures.viz_pair(pair, best, it, ("it", "animal", "street"))

# %% [markdown]
# Nothing moves: one head gives *street* most of its weight, whatever the last word, and perhaps simply looks at a noun.
# Does the model need to know at all? In German the pronoun must agree with its noun (*das Tier, es*; *die Straße,
# sie*), so for this pair it does, and its translations show that it does not know: it writes *es* both times. Evidence
# on what attention has to do with it takes thousands of sentences: {cite:t}`muller2018large`
# let models choose German pronouns in 12,000 of them, and {cite:t}`voita2018context` compare attention with
# coreference.

# %% [markdown]
# ## Figure 5: do the heads perform different tasks?
#
# The paper draws two heads of one layer. We do the same with the two heads of our layer 2 that differ most on the paper's
# sentence. The difference between two heads is the share of weight that we would have to move to turn one into
# the other, averaged over the queries.

# %% tags=["row-F5"]
def differences(W):
    """(N, h, h): the weight to move between two heads, mean over queries."""
    W = W[:, :, :-1]
    return 0.5 * (W[:, :, None] - W[:, None]).abs().sum(-1).mean(-1)

words, W = read(LAW)
apart = differences(W)[1]
two = divmod(apart.argmax().item(), h)
print(f"heads {two[0] + 1} and {two[1] + 1} of layer 2: "
      f"{apart.max():.2f} of the weight to move")
assert apart.max() > 0.5

# %% mystnb={"image": {"alt": "Two drawings, one above the other, of the sentence about the Law: words above and below, with lines from every query to its keys, for the two most different heads of a layer."}, "figure": {"caption": "The paper's Figure 5 in our encoder: the two heads of layer 2 that differ most on this sentence, with all weights above 0.1.", "name": "fig-viz-two-heads"}} tags=["hide-input"]
attention_pictures.viz_two_heads(words, W[1], two)

# %% [markdown]
# The two differ plainly, but have they *learned* to differ? Heads with random weights differ as well, so our control are
# the twenty models that were never trained.

# %% tags=["row-F5"]
def apart_in(of, texts):
    moved = [differences(read(english, of)[1]) for english, _ in texts]
    return torch.stack(moved).sum((2, 3)).mean(0) / (h * (h - 1))

learned = apart_in(model, held_out[:50])
drawn = torch.stack([apart_in(one, held_out[:10]) for one in untrained])
for i in range(N):
    print(f"layer {i + 1}: weight to move between two heads {learned[i]:.2f}; "
          f"untrained {drawn[:, i].min():.2f} to {drawn[:, i].max():.2f}")
more_apart = [i + 1 for i in range(N) if learned[i] > drawn[:, i].max()]
assert more_apart
print(f"farther apart than in any of the twenty: layers {more_apart}")

# %% [markdown]
# "The heads clearly learned to perform different tasks" is thus more than a picture can show, and partly right: heads differ
# from the start, and training has driven them apart in the layers named above.
# Here are all 12 on the sentence about the car.

# %% mystnb={"image": {"alt": "Twelve small heat maps in three rows of four, a row for each encoder layer: queries down, keys across, for the ten words and marks of the sentence. Some maps have a dark diagonal, some a dark last column, one is pale all over."}, "figure": {"caption": "All heads of the encoder on *Tom sold his car because it was old.* In each map queries are rows and keys are columns, in the order of the sentence; the last column is its end.", "name": "fig-viz-all-heads"}} tags=["hide-input"]
words, W = read(source_text)
attention_pictures.viz_all_heads(words, W)

# %% tags=["row-F5", "nbval-ignore-output"]
columns = {"end": W[..., -1].mean(-1),
           "word before": W.diagonal(-1, 2, 3).mean(-1),
           "spread": -torch.special.xlogy(W, W).sum(-1).mean(-1)
                     / math.log2(len(words)) / math.log(2)}
for name, share in columns.items():
    layer, head = divmod(share.argmax().item(), h)
    print(f"{name:12} most in head {layer + 1}.{head + 1}: {share.max():.2f}")
assert (columns["end"].max() > 0.3 and columns["word before"].max() > 0.3
        and columns["spread"].max() > 0.7)

# %% [markdown]
# Three patterns have been described again and again, in BERT {cite}`clark2019what` and in translation models
# {cite}`voita2019analyzing`: parallel lines (the word before, after, or itself), a **fan** that meets in one key (most
# often the end or a full stop), and a **blur** over much of the sentence. Next to them both papers find a few heads
# that agree well with grammar. Ours has all of these: columns at the end of the sentence, a head that looks at the word
# before, a blur, and the head for determiners.
#
# ### Are early layers local, and late ones not?
#
# So it is often told. We measure how far a word looks, in words, without the end of the sentence, as a share of what even
# weights would give, and compare with the untrained models:

# %% tags=["nbval-ignore-output"]
def reach(of, texts):  # mean distance by layer, over that of even weights
    found = []
    for english, _ in texts:
        A = read(english, of)[1][..., :-1, :-1]
        place = torch.arange(A.size(-1), dtype=torch.double)
        away = (place[:, None] - place).abs()
        found.append((A * away).sum((1, 2, 3)) / A.sum((1, 2, 3)) / away.mean())
    return torch.stack(found).mean(0)
longer = [pair for pair in held_out if len(pair[0].split()) > 5][:40]
ours = reach(model, longer)
drawn = torch.stack([reach(one, longer[:10]) for one in untrained])
for i in range(N):
    print(f"layer {i + 1}: {ours[i]:.2f}; "
          f"untrained {drawn[:, i].min():.2f} to {drawn[:, i].max():.2f}")
assert (ours < drawn.min(0).values - 0.1).all() and (ours.diff() > 0).all()

# %% [markdown]
# Below 1 a layer is more local than even weights: all three are, and hardly an untrained one is. Layer 1 is the most
# local and layer 3 the least, so the saying is right here, as far as three layers can tell.

# %% [markdown]
# ## Encoder-decoder attention: a soft alignment
#
# A **word alignment** says which source word each target word translates; {cite:t}`bahdanau2015neural` showed that
# attention learns something like it by itself. We write four by hand, in sentences where German changes the order. There
# is a trap: a decoder row *reads* one token and *predicts* the next, so its label is either of two. We count how often
# the strongest key, in the mean of a layer's heads, is the word that a human aligned, with both labels.

# %% tags=["hide-cell"]
ALIGNED = [
    ("I don't know where Tom bought his new car.", "Ich weiß nicht, wo Tom sein neues Auto gekauft hat.",
     "Ich-I weiß-know nicht-don wo-where Tom-Tom sein-his neues-new Auto-car gekauft-bought hat-bought"),
    ("Tom sold his car because it was old.", "Tom verkaufte sein Auto, weil es alt war.",
     "Tom-Tom verkaufte-sold sein-his Auto-car weil-because es-it alt-old war-was"),
    ("My brother is reading a book in the garden.", "Mein Bruder liest im Garten ein Buch.",
     "Mein-My Bruder-brother liest-reading im-in Garten-garden ein-a Buch-book"),
    ("Yesterday I saw an old man in the park.", "Ich habe gestern im Park einen alten Mann gesehen.",
     "Ich-I habe-saw gestern-Yesterday im-in Park-park einen-an alten-old Mann-man gesehen-saw"),
]
crosses = [explore_attention(model, tokenizer, source, target, kinds=["cross"]).maps[0] for source, target, _ in ALIGNED]
assert all(len(maps.predicts) == len(maps.queries) for maps in crosses)

# %% tags=["nbval-ignore-output"]
def agreement(label):
    """How often the strongest key of a layer's mean head is the human's."""
    right = []
    for maps, (_, _, alignment) in zip(crosses, ALIGNED):
        german, english, A = by_word(maps, getattr(maps, label))
        for link in alignment.split():
            target, source = link.split("-")
            strongest = A.mean(1)[:, german.index(target)].argmax(-1)
            right.append(strongest == english.index(source))
    return torch.stack(right).double().mean(0)
scores = {label: agreement(label) for label in ("predicts", "queries")}
for i in range(N):
    print(f"layer {i + 1}: right for {scores['predicts'][i]:.0%} of the words "
          f"it predicts, {scores['queries'][i]:.0%} of those it reads")
assert scores["predicts"][-1] > scores["queries"][-1]

# %% mystnb={"image": {"alt": "Three maps of encoder-decoder attention on white, one for each layer: predicted German words down, English words across. Orange boxes mark the alignment by hand; gekauft comes late in German, bought in the middle in English."}, "figure": {"caption": "Encoder-decoder attention, mean of a layer's heads. A row is labelled with the word that it predicts; boxes are the alignment by hand. *gekauft* (bought) comes at the end in German.", "name": "fig-viz-cross"}} tags=["hide-input"]
attention_pictures.viz_cross(*by_word(crosses[0], crosses[0].predicts), ALIGNED[0][2])

# %% [markdown]
# In the last layer the alignment belongs to the word that is being *predicted*: the search for the next word is what that
# layer is for. Layer 1 aligns the word just *read*, whose embedding is most of its query, so its marks lie one row too
# low. Attention agrees with human alignment for nouns more than for verbs, whose translation needs more of the sentence
# {cite}`ghader2017what`.

# %% [markdown]
# ## All heads, described by numbers
#
# What does a head do on average? We split the attention of every word in a hundred held-out sentences into five parts:
# on the end of the sentence (*eos*), on the token before, on itself, on the token after, and the rest.

# %% tags=["hide-cell"]
pairs = [(tokenizer.encode(english), tokenizer.encode(german)) for english, german in held_out]
batch = make_batch(pairs[:100])
with record_attention(model) as weights, torch.inference_mode():
    model(batch.source, batch.target_in)
A = torch.stack([weights[f"encoder.layers.{i}.self_attention"] for i in range(N)])  # (N, B, h, L, S)
eos = batch.source == model.config.eos_id
word = ((batch.source != model.config.pad_id) & ~eos)[:, None, :]  # (B, 1, L): the queries that count
place = torch.arange(batch.source.size(1))
parts = {name: (place[None, :] - place[:, None] == d) & ~eos[:, None, None]
         for name, d in (("previous", -1), ("itself", 0), ("next", 1))} | {"eos": eos[:, None, None]}
profile = {name: ((A * part).sum(-1) * word).sum((1, 3)) / word.sum() for name, part in parts.items()}
profile["other"] = 1 - sum(profile.values())
bits = (-torch.special.xlogy(A, A).sum(-1) / math.log(2) * word).sum((1, 3)) / word.sum()
even_bits = ((batch.source != model.config.pad_id).sum(1).log2() * word.sum((1, 2))).sum() / word.sum()
assert all(((part > -1e-5) & (part < 1 + 1e-5)).all() for part in profile.values()) and (bits > -1e-4).all() and (profile["eos"] > 0.5).sum(1).tolist() == [0, 0, 2]

# %% mystnb={"image": {"alt": "Left: twelve stacked horizontal bars, one for each encoder head, which split its attention into previous token, itself, next token, end of sentence and other. Right: the entropy of each head in bits, as dots, with a dashed line for even weights."}, "figure": {"caption": "Every encoder head on a hundred sentences. Left: where the attention of a word goes. Right: its entropy; the dashed line is that of even weights.", "name": "fig-viz-measures"}} tags=["hide-input"]
attention_pictures.viz_measures(profile, bits, even_bits)

# %% [markdown]
# Two heads of our layer 3 give more than half of their weight to `</s>`. A sharp head may still have
# found nothing: one that gives all its weight to *eos* has 0 bits. {cite:t}`clark2019what` see the same with `[SEP]` in
# BERT, and read it as heads with **nothing to do**. Weights must sum to 1, so a head with nothing to add needs a place
# to rest, and exercise {ref}`ex-viz-norms` tests that reading.
#
# In language models the resting place is the *first* token, which every later one can see, and it is called an **attention
# sink**. {cite:t}`xiao2024efficient` found what hangs on it: a model that keeps the keys of the last tokens only breaks
# down as soon as the first few are dropped, and works for millions of tokens if these four are kept.
# {cite:t}`gu2025when` see sinks appear in every language model that they train, and vanish where weights need not sum to
# 1. OpenAI's gpt-oss {cite}`openai2025gptoss` gives each head a learned number in the softmax's denominator to rest on.

# %% [markdown]
# ## What the model loses without a head
#
# With $W^O$ cut into $h$ blocks of $d_v$ rows, multi-head attention is a sum over heads ({ref}`ex-sum-of-heads`):
#
# $$
# \mathrm{MultiHead} = \sum_{i=1}^{h} A_i\, V_i\, W_i^O
# $$ (viz-sum)
#
# If we set $W_i^O = 0$, head $i$ is gone and the others are as they were. `knocked_out` does that for the length of a
# `with` block. We remove each of the 36 heads in turn and measure the loss on 300 held-out sentences, in nats per token.

# %% tags=["nbval-ignore-output"]
kinds = {"encoder self": [x.self_attention for x in model.encoder.layers],
         "decoder self": [x.self_attention for x in model.decoder.layers],
         "encoder-decoder": [x.cross_attention for x in model.decoder.layers]}
modules = {f"{kind}, layer {i + 1}": module for kind, layers in kinds.items()
           for i, module in enumerate(layers)}
all_heads = [(module, i) for module in modules.values() for i in range(h)]

def loss_without(*heads, on=pairs[:300]):
    with knocked_out(*heads):
        return math.log(perplexity(model, on))
whole = loss_without()
losses = torch.tensor([loss_without(head) for head in all_heads])
change = losses.view(-1, h) - whole
print(f"whole model: {whole:.3f} nats; one head less costs "
      f"{change.median():.4f} (median) to {change.max():.3f} (most)")

# %% mystnb={"image": {"alt": "Map of the change of the loss when one head is removed: nine rows for three attentions in three layers, four columns for heads, with the number written in each cell and a colour bar."}, "figure": {"caption": "What the model loses without one head: change of the loss in nats per token. Darker is worse.", "name": "fig-viz-knock-out"}} tags=["hide-input"]
attention_pictures.viz_knock_out(change, modules)
assert change.max() > 0.02 and change.median() < change.max() / 3
assert change.argmax().item() // h >= 2 * N  # in the encoder-decoder attention

# %% [markdown]
# ```{translator} knock-out
# :text: Tom sold his car because it was old.
# ```
#
# Two heads of encoder-decoder attention cost most: through these the decoder learns of the source. Its three layers do not
# share that work evenly:

# %% tags=["nbval-ignore-output"]
cross, costs = all_heads[2 * N * h :], []
for name, heads in (("layer 3", cross[2 * h :]),
                    ("layers 1 and 2", cross[: 2 * h]), ("all three", cross)):
    costs.append(loss_without(*heads) - whole)
    print(f"without the encoder-decoder attention of {name:14} "
          f"{costs[-1]:+.2f} nats")
assert costs[2] > costs[0] > 0

# %% [markdown]
# One head at a time is a weak test, since other heads can do a missing one's work. So we remove more and more heads, the
# cheapest first. The order is chosen on the 300 sentences above; the loss is measured on 300 others, else the curve would
# look better than it is.

# %% tags=["nbval-ignore-output"]
order = change.flatten().argsort()
counts = [*range(0, 36, 4), 36]
others = pairs[300:600]
by_cost = [all_heads[j] for j in order]
losses = [loss_without(*by_cost[:count], on=others) for count in counts]
curve = [loss - losses[0] for loss in losses]
print("8, 12 and 16 heads removed:",
      *(f"{curve[counts.index(n)]:+.2f}" for n in (8, 12, 16)), "nats")
assert curve[-1] > 1 and curve[counts.index(8)] < 0.25 * curve[-1]

# %% mystnb={"image": {"alt": "Line chart of the change of the loss against the number of heads removed, from none to all 36, the cheapest first: it rises slowly at first, and most steeply at the end."}, "figure": {"caption": "Heads removed one after the other, the cheapest first. The last point has no attention at all.", "name": "fig-viz-pruning"}} tags=["hide-input"]
attention_pictures.viz_pruning(counts, curve)

# %% [markdown]
# {cite:t}`michel2019sixteen` draw this curve for a large translation model and for BERT: 20 and 40 percent of the heads
# go without noticeable harm. Ours has the price that is printed above.
# {cite:t}`voita2019analyzing` let training choose, and remove 38 of 48 encoder heads for less than a fifth of a BLEU; those that stay
# mostly have a recognisable role. We should keep in mind that removal says what *this* model depends on, while one
# trained without the head may do as well, and that a head replaced by zeros gives the next layer norm an input that it
# has never seen. So the next measurement has
# a second column, in which attention stays and all its weights are equal, so that it cannot choose. It asks which sentences
# need the encoder's self-attention, by their length and by words that mark a construction.

# %%
by_kind = read_result("results/attention_by_kind.json")
nothing, even = by_kind["records"]
def nats(one):
    return f"{one['nats']:+.2f} ({one['low']:.2f} to {one['high']:.2f})"

rows = []
for by in ("by_length", "by_construction"):
    for one, other in zip(nothing[by], even[by]):
        name = one.get("construction") or "{} to {} words".format(*one["words"])
        rows.append((name, one["sentences"], nats(one), nats(other)))
Table(("sentences with", "number", "nats without (95 %)", "with even weights"),
      rows)

# %% [markdown]
# Most of what it is worth lies in choosing, and **long sentences need the choice most**: where there is more to choose
# from, even weights cost more, and these intervals are apart. Without any attention short and long sentences lose alike.
# **No construction stands out**: of ten intervals at most one lies beside that of the sentences that have none, and
# of ten one may do so by chance.

# %% tags=["hide-cell"]
assert even["by_length"][0]["high"] < even["by_length"][2]["low"] < nothing["by_length"][0]["high"] < nothing["by_length"][2]["high"]
beside = [one["by_construction"][-1]["high"] < kind["low"] for one in (nothing, even) for kind in one["by_construction"][:-1]]
assert len(beside) == 10 and sum(beside) <= 1

# %% [markdown]
# (section-viz-copying)=
# ## How a name is copied
#
# Nobody can translate *Kowalski*: the model has to write it as it stands, piece by piece, and of all names below training
# had only *Nakamura*. Which heads does that take? We let it translate 48 sentences with such names, take out one
# encoder-decoder head after the other, and count the names that come out right.

# %%
NAMES = ["Priya", "Kowalski", "Nakamura", "Okonkwo", "Szymon", "Thorvald",
         "Xiaoming", "Quintero", "Bhattacharya", "Lindqvist", "Adebayo",
         "Moreau", "Petrenko", "Yilmaz", "Castellano", "Haldane"]
FRAMES = ("{} is reading a book in the garden.",
          "I saw {} at the station yesterday.", "My brother works with {}.")
lines = [(name, frame.format(name)) for name in NAMES for frame in FRAMES]
print(len(lines), "sentences, such as:", lines[0][1])

def translated(sentences):
    return Translator(model, tokenizer).translate(sentences, beam_size=1)

def n_copied():
    said = translated([line for _, line in lines])
    return sum(name in text for (name, _), text in zip(lines, said))

# %%
def copied_without(head):
    with knocked_out(head):
        return n_copied()

whole_names = n_copied()
left = torch.tensor([[copied_without(head) for head in layer]
                     for layer in heads_of(model, "cross")])
print(f"{whole_names} of {len(lines)} names right; without a head:")
for i, row in enumerate(left.tolist(), 1):
    print(f"layer {i}:", *(f"{n:3}" for n in row))

# %% [markdown]
# One head of layer 1 is most of it. Where do the heads look in the middle of a name? We give the decoder its own
# translation and take the weight on two source pieces: the one that was *just written*, which the decoder reads, and the one
# that is to be written *next*.

# %%
encode = tokenizer.encode

def place_of(part, ids):
    """Where `part` begins in `ids`; None where it does not."""
    at = range(len(ids) - len(part) + 1)
    return next((i for i in at if ids[i : i + len(part)] == part), None)

name, line = lines[0]
said = translated([line])[0]
for text in (line, said):
    print(*tokenizer.pieces(encode(text)))
    print("   the name begins at", place_of(encode(name), encode(text)))

# %%
def cross_weights(source, said):
    """(N, h, rows, keys): row i reads token i - 1 and predicts token i."""
    with record_attention(model) as weights, torch.inference_mode():
        model(torch.tensor([[*source, model.config.eos_id]]),
              torch.tensor([[model.config.bos_id, *said]]))
    return torch.stack([weights[f"decoder.layers.{i}.cross_attention"][0]
                        for i in range(N)])

print(tuple(cross_weights(encode(line), encode(said)).shape))

# %%
def on_pieces(name, line):
    """(2, N, h): mean weight within a name on the piece just written, and
    on the next; None where the name is short, or not copied."""
    said, n = encode(translated([line])[0]), len(encode(name))
    s, t = (place_of(encode(name), ids) for ids in (encode(line), said))
    if s is None or t is None or n < 3:
        return None
    A = cross_weights(encode(line), said)[..., t + 1 : t + n, s : s + n]
    return torch.stack([A.diagonal(shift, -2, -1).mean(-1)
                        for shift in (0, 1)])  # row k has read piece k

found = [on_pieces(*one) for one in lines]
found = torch.stack([one for one in found if one is not None])
written, following = found.mean(0)
print(f"{len(found)} names of three pieces or more are copied")

# %% tags=["hide-input"] mystnb={"image": {"alt": "Three maps of three rows for layers and four columns for heads, with the number written in each cell. Left, names right without the head: one cell of layer 1 is low, all others are 35 or more. Middle, weight on the piece just written: only that cell is near 1. Right, weight on the next piece: seven cells of layers 2 and 3 are high, layer 1's are low."}, "figure": {"caption": "The twelve encoder-decoder heads while a name is copied. Left: names right without the head. Middle and right: its weight on the source piece that was just written, and on the one that comes next.", "name": "fig-viz-copying"}}
attention_pictures.viz_copying(left, written, following)

# %% [markdown]
# Heads of layers 2 and 3 look at the piece that comes next, as a picture of copying should, and without any one of them
# 35 names still come out right. The head that cannot be spared looks one piece *back*. It finds the place in
# the source of what was just written; from there the heads of layer 2 go one further. Where that head is gone, they no
# longer know where they are. Language models repeat a phrase with the same two steps, in two layers of self-attention,
# which {cite:t}`olsson2022context` call **induction heads**. It is no head for names alone: it finds the place in
# ordinary sentences too, and of all heads in the map above it has the highest price. So the mechanism predicts a fault.
# Where a digit stands several times in a row, "where is what I have just written?" has several answers. We ask for
# numbers of one digit and, as a control, for as long ones of different digits:

# %%
read_back = divmod(written.argmax().item(), h)
price = change[2 * N + read_back[0], read_back[1]]
print(f"head {read_back[0] + 1}.{read_back[1] + 1}: {whole_names} names right "
      f"with it, {left[read_back]:.0f} without; "
      f"{price:.3f} nats a token on ordinary sentences")
assert price == change.max() and left[1:].min() > 0.75 * whole_names

# %%
def n_right(numbers):
    said = translated([f"I have {number} books." for number in numbers])
    return sum(map(str.__contains__, said, numbers))

lengths = [5, 6] * 20
one_digit = [str(i % 9 + 1) * n for i, n in enumerate(lengths)]
generator = random.Random(0)
different = ["".join(generator.sample("123456789", n)) for n in lengths]
print(f"of {len(lengths)} numbers right: one digit {n_right(one_digit)}, "
      f"different digits {n_right(different)}")
assert left[read_back] < 0.25 * whole_names
assert n_right(one_digit) < 0.25 * n_right(different)

# %% [markdown]
# ## Are weights an explanation?
#
# If a head gives a word 70 percent of its weight, did that word cause the output? We have three reasons to doubt it.
#
# **Different weights can give the same output.** A head's output is $A_i V$, a row of $S$ weights times an $S \times d_v$
# matrix. With $S > d_v + 1$ keys there are vectors $n \ne 0$ whose entries sum to 0 and with $n V = 0$; if $n$ is short
# enough, $A_i + n$ is another row of weights with the same output {cite}`brunner2020identifiability`. The
# sentences of Figures 3 and 4 together are long enough for that. We take the most spread head of *making* and search
# 1,000 random directions.

# %% tags=["hide-cell"]
both = f"{SPIRIT} {LAW}"
spirit = explore_attention(model, tokenizer, both, kinds=["encoder"]).maps[0]
query = groups(spirit.queries)[making][0]
of_making = spirit.weights[:, :, query]
_, layer, head, where = numbered(-torch.special.xlogy(of_making, of_making).sum(-1))
inputs, module = {}, model.encoder.layers[layer].self_attention
hook = module.register_forward_hook(lambda module, args, output: inputs.update(x=args[0]))
with torch.inference_mode():
    model.encode(torch.tensor([[*tokenizer.encode(both), model.config.eos_id]]))
    V = module.keys_and_values(inputs["x"])[1][0, head].double()
hook.remove()
S, d_v = V.shape
assert len(V) > d_v + 1

# %% tags=["nbval-ignore-output"]
alpha = of_making[layer, head].double()
constraints = torch.cat([V, torch.ones(S, 1, dtype=torch.float64)], dim=1).T
null_space = torch.linalg.svd(constraints).Vh[d_v + 1:]  # what it sends to 0
directions = torch.randn(1000, len(null_space)).double() @ null_space
until_zero = torch.where(directions < 0, -alpha / directions, math.inf)
steps = until_zero.min(dim=1).values
others = alpha + steps[:, None] * directions
moved = 0.5 * (others - alpha).abs().sum(dim=1)
other = others[moved.argmax()]
print(f"{where}: {moved.max():.1%} of the weight lies elsewhere, "
      f"the output differs by {(other @ V - alpha @ V).abs().max():.0e}")
assert ((other > -1e-12).all() and torch.allclose(other @ V, alpha @ V)
        and moved.max() > 0.001)

# %% [markdown]
# Up to $d_v + 1$ tokens, the output generally determines the weights, so this doubt grows with the text.
#
# **A weight is only part of a contribution.** What reaches the output is $A_{ij}\, v_j W^O$, and a large weight on a short
# vector is little. {cite:t}`kobayashi2020attention` measure lengths instead, and most of BERT's attention to separators
# disappears ({ref}`ex-viz-norms`).
#
# **A position's vector mixes all words**, since from the second layer on the other words have added to it. What has replaced
# pictures in research is a test of that: **activation patching** {cite}`meng2022locating`. We run the model on two
# sentences that differ in one word, put a piece of the second run into the first, and see how far the output moves towards
# the second. Here the pieces are the encoder's vectors, one position at a time; *old* becomes *new*, and we ask the decoder
# for *alt* or *neu*.

# %%
sentence = "Tom sold his car because it was {}."
begun = tokenizer.encode("Tom verkaufte sein Auto, weil es")
one, two = (pad_source([tokenizer.encode(sentence.format(last))])
            for last in ("old", "new"))
target_in = torch.tensor([[model.config.bos_id, *begun]])
alt, neu = (tokenizer.encode(word)[0] for word in ("alt", "neu"))
def prefers_new(memory):
    logits = model.logits(model.decode(target_in, memory, None))[0, -1]
    return (logits[neu] - logits[alt]).item()  # log p differ by the same
before, after = model.encode(one), model.encode(two)
places = torch.eye(one.size(1), dtype=torch.bool)[..., None]
patched = [prefers_new(torch.where(p, after, before)) for p in places]
low, high = prefers_new(before), prefers_new(after)
recovered = [(value - low) / (high - low) for value in patched]
print(f"log p(neu) - log p(alt): {low:.1f} for old, {high:.1f} for new")

# %% mystnb={"image": {"alt": "Bar chart over the tokens of the sentence: which share of the change from old to new comes back when the encoder's vector of this position alone is exchanged. The bar of the exchanged word is by far the highest; the others are near zero."}, "figure": {"caption": "Activation patching: the share of the change in the output that one exchanged encoder vector brings about.", "name": "fig-viz-mixed"}} tags=["hide-input", "nbval-ignore-output"]
changed, pieces = (one != two)[0], tokenizer.pieces(one[0].tolist())
attention_pictures.viz_mixed(pieces, changed, recovered)
assert changed.sum() == 1 and recovered[changed.int().argmax()] == max(recovered) > 0.4


# %% [markdown]
# The vector of the exchanged word carries most of the change to the decoder, whatever the maps of the layers below it look
# like. The same is done for single heads and layers, with many pairs and with care for what is put in
# {cite}`zhang2024towards`: zeros, a mean, or another sentence's value can give different answers.
# **Attention rollout**
# {cite}`abnar2020quantifying` multiplies the layers' weights to trace such paths ({ref}`ex-viz-rollout`), which in
# their tests agrees better with removal and with gradients than raw weights do. {cite:t}`jain2019attention` (*Attention
# is not Explanation*) find, in recurrent classifiers, that quite different weights can give the same prediction;
# {cite:t}`wiegreffe2019attention` (*Attention is not not Explanation*) answer that such weights must be ones a model
# could have *learned*, and that it depends on whether an explanation is to be plausible or faithful. Pictures of
# attention help us to spot a wrong mask and to form a hypothesis. We then test it, with a control, a minimal pair, or a
# removal.

# %% [markdown]
# ## What to remember
#
# - `record_attention` gives every head's weights: rows are queries, columns are keys, rows sum to 1 (equation
#   {eq}`viz-weights`). A decoder's row reads one token and predicts the next.
# - A head found by searching needs a control: the same search elsewhere, the same head in other sentences, and many
#   untrained models, since one is a single draw.
# - Entropy (equation {eq}`viz-entropy`) and shares describe all heads; a removal (equation {eq}`viz-sum`) says what the
#   model needs. Ours loses more than half of its BLEU without the encoder's self-attention.
# - Weights alone do not explain: other weights can give the same output, and a position's vector mixes all words. Patching
#   asks what carries a change to the output.
#
# :::{dropdown} Where this is
# Code: `record_attention` in `annotated_transformer/extras/attention_views/record.py`; beside it `explore_attention` in
# `explorer.py`, `knocked_out` in `knock_out.py` and `attention_report` in `report.py`. Tests: `tests/extras/attention_views/`, and
# `tests/lab/experiments/test_knock_out.py`.
# :::

# %% [markdown]
# ## Exercises

# %% [markdown] tags=["exercise"]
# ```{exercise} Which way round?
# :label: ex-viz-axes
#
# Somebody hands you a square matrix of attention weights with unlabelled axes. Write `queries_are_rows(A)`. For which
# matrices is it impossible to tell?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-viz-axes
# :class: dropdown
#
# Compare the sums of the rows and of the columns with 1. If both are 1 (a *doubly stochastic* matrix, such as even
# weights, or a head that always looks at the token itself), the sums are silent.
# ```

# %% tags=["hide-cell", "solution"]
def queries_are_rows(A):
    rows, columns = ((A.sum(axis) - 1).abs().max() for axis in (1, 0))
    assert (rows < 1e-4) != (columns < 1e-4), "cannot tell"
    return bool(rows < 1e-4)

encoder = explorer.maps[1]
for A_head in encoder.weights.flatten(0, 1):
    assert queries_are_rows(A_head) and not queries_are_rows(A_head.T)
try:
    queries_are_rows(torch.eye(3))
except AssertionError as error:
    print(error)
else:
    raise AssertionError("the identity told its rows from its columns")

# %% [markdown] tags=["exercise"]
# ```{exercise} The best of a crowd
# :label: ex-viz-control
#
# Search the 12 encoder heads of untrained models for the one whose *its* looks most at *Law*. By how much does its
# share exceed an even spread over the sentence's tokens? What does that say about "we found a head that ..."?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-viz-control
# :class: dropdown
#
# The best of 12 random heads has several times the even share, though the model knows nothing (the folded cell). A
# find counts from where it exceeds what a search among as many heads gives *without* the thing to be found.
# ```

# %% tags=["hide-cell", "solution"]
even = 1 / len(read(LAW)[0])
print(f"even {even:.3f}; best of 12", of_twenty(LAW, lambda A: A[:, :, its, law]))

# %% [markdown] tags=["exercise"]
# ```{exercise} How spread can it be?
# :label: ex-viz-entropy
#
# What is the largest entropy of row $i$ (counted from 1) of a *causal* head, in bits? What is the largest mean over the
# rows of a sentence of 8 tokens, and why is it unfair to compare it with an encoder head's?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-viz-entropy
# :class: dropdown
#
# Row $i$ sees $i$ keys, so $\log_2 i$. The mean for 8 tokens is $\frac{1}{8} \log_2 8! = 1.912$ bits, against 3 for an
# encoder head, because early rows have little to choose from. Divide by the largest possible value before you compare.
# ```

# %% tags=["hide-cell", "solution"]
causal = torch.ones(8, 8).tril()
causal = causal / causal.sum(-1, keepdim=True)
of_rows = -torch.special.xlogy(causal, causal).sum(-1) / math.log(2)
assert_close(of_rows, torch.arange(1, 9).float().log2())
assert_close(of_rows.mean().item(), math.log2(math.factorial(8)) / 8)
print(f"{of_rows.mean():.3f}")

# %% [markdown] tags=["exercise"]
# ```{exercise} Rollout
# :label: ex-viz-rollout
#
# Attention rollout mixes each layer's mean weights with the residual path, $\hat A = \frac{1}{2} (A + I)$, and multiplies
# the layers: $\hat A_N \cdots \hat A_1$. Show that its rows sum to 1. Name two things that it leaves out.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-viz-rollout
# :class: dropdown
#
# If $A\mathbf{1} = \mathbf{1}$ and $B\mathbf{1} = \mathbf{1}$, then $AB\mathbf{1} = A\mathbf{1} = \mathbf{1}$. It leaves
# out the values and $W^O$, the feed-forward layers and layer norms, and the differences between heads. The half for the
# residual path is a convention.
# ```

# %% tags=["hide-cell", "solution"]
rollout = torch.eye(len(encoder.keys))
for A_layer in encoder.weights.mean(1):
    rollout = 0.5 * (A_layer + torch.eye(len(A_layer))) @ rollout
assert_close(rollout.sum(-1), torch.ones(len(rollout)))
assert (rollout > 0).all() and (rollout.diagonal() >= 0.5**N - 1e-6).all()  # the residual path alone

# %% [markdown] tags=["exercise"]
# ```{exercise} A decoder that cannot see
# :label: ex-viz-blind
#
# Knock out all heads of encoder-decoder attention. What kind of model is left, and how does its output depend on the source?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-viz-blind
# :class: dropdown
#
# A language model of German: the logits are the same for *every* source, and the loss rises by some nats. (One
# trained as a language model should do better: this one never learned to do without the source.)
# ```

# %% tags=["hide-cell", "solution"]
cross_heads = all_heads[2 * N * h:]
with torch.inference_mode():
    seen = [model(rows, batch.target_in) for rows in (batch.source, batch.source.flip(0))]
    with knocked_out(*cross_heads):
        blind = [model(rows, batch.target_in) for rows in (batch.source, batch.source.flip(0))]
assert_close(*blind)
assert not torch.allclose(*seen, atol=0.1) and loss_without(*cross_heads) - whole > 1

# %% [markdown] tags=["exercise"]
# ```{exercise} Lengths instead of weights
# :label: ex-viz-norms
#
# For one sentence, compute $\lVert A_{ij}\, v_j W_i^O \rVert$ for every query and key of each encoder head. What share of
# the lengths does eos get, and what share of the weights? Does that support "a head that looks at eos rests"?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# $A_{ij}$ is a positive number, so it comes out of the norm. A forward hook gives you the input of each module.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-viz-norms
# :class: dropdown
#
# Where the share of the lengths is well below that of the weights, eos hands on a shorter vector than a word does,
# which supports the reading; the folded cell prints both for each layer. Whether a head really rests there, only a removal
# decides.
# ```

# %% tags=["hide-cell", "nbval-ignore-output", "solution"]
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
