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
# is taken up in [After the paper](after_the_paper.ipynb).

# %% tags=["hide-cell"]
import io
import math

import matplotlib.pyplot as plt
import PIL.Image
import torch
from IPython.display import Image, display
from matplotlib.colors import LinearSegmentedColormap
from torch.testing import assert_close

from annotated_transformer import Transformer, Translator, load_model, make_batch, perplexity, record_attention
from lab.experiments.result_file import read_result
from annotated_transformer.looking.explorer import explore_attention
from annotated_transformer.looking.report import as_table
from annotated_transformer.looking.knock_out import knocked_out

# %% tags=["hide-cell"]
from statistics import median

from lab.display import PALETTE, use_style

use_style()
INK = LinearSegmentedColormap.from_list("ink", ["white", PALETTE[0], "#00263A"])

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
# to German ([6.1](6_1_translation.ipynb)). First we let it read the paper's two sentences.

# %% tags=["nbval-ignore-output"]
model, tokenizer = load_model("model")
N, h = model.config.N, model.config.h
SPIRIT = ("It is in this spirit that a majority of American governments have passed new laws since 2009 "
          "making the registration or voting process more difficult.")
LAW = ("The Law will never be perfect, but its application should be just "
       "- this is what we are missing, in my opinion.")
print(" ".join(tokenizer.pieces(tokenizer.encode(SPIRIT))[:24]), "...")
for translation in Translator(model, tokenizer).translate([SPIRIT, LAW]):
    print(translation)
assert N * h == 12

# %% [markdown]
# With a vocabulary of 4,800, rare words are cut into syllables and letters (▁ marks a space). Today's translations say
# roughly "In this [half a word] it is that the American government has been exaggerated by American governments since
# 200 900 processions" and "The law will never be perfect, but its job application should only be missed as we are
# lacking." In politics the model is out of its depth, so let us ask what its attention is worth where it is at home, on
# everyday sentences. For the pictures below we also write fifty such sentences ourselves. (They are so common that some
# of them surely stand in the training data.)

# %% tags=["hide-cell"]
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

# %% tags=["hide-cell"]
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
sentences = [tuple(pair.split(" | ")) for line in f"{first}\n{second}".splitlines() for pair in line.split(" / ")]
assert len(sentences) == 50

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
report = read_result("results/tatoeba_large.json")["records"][0]["at_work"]
print(as_table(report))

# %% [markdown]
# The lines "all" tell us most. Without the encoder's self-attention BLEU falls from 32.5 to 13.0: an English word alone
# is not enough to translate it. No single layer can be spared without losing 2 BLEU, and the heads of the encoder are
# neither blurred nor frozen on one token; they use about 2 bits of the 3.7 that there are. So the pictures below come
# from a model that *needs* its encoder's attention. (How much it needs each head we measure below.) That cannot be
# taken for granted. The book's first model, trained at a higher rate and from other initial values, drew pictures that
# looked as convincing, and lost only 2.5 BLEU of 24.7 without all of these heads. [5.3](5_3_optimizer.ipynb) shows what
# such a rate and such initial values do to attention.

# %% tags=["hide-cell"]
whole, lost = report["whole"]["bleu"], {name: part["bleu"] for name, part in report["without"].items()}
assert round(whole, 1) == 32.5 and round(whole - lost["encoder"], 1) == 13.0 and lost["encoder"] > whole / 2
assert min(layer["bleu"] for layer in report["layers"]) > 2
assert all(1.5 < median(layer["entropy"]) < 2.3 for layer in report["layers"][:N]) and round(report["layers"][0]["uniform"], 1) == 3.7

# %% [markdown]
# ## To record the weights, and to read them
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
# kernel keeps $A$ to itself, so `record_attention` hooks in: before each attention module runs, it computes equation
# {eq}`viz-weights` from the module's own inputs. The model's output stays as it is.

# %%
source_text, target_text = "Tom sold his car because it was old.", "Tom verkaufte sein Auto, weil es alt war."
source = torch.tensor([[*tokenizer.encode(source_text), model.config.eos_id]])
target_in = torch.tensor([[model.config.bos_id, *tokenizer.encode(target_text)]])
with record_attention(model) as weights, torch.inference_mode():
    model(source, target_in)
for name, A in list(weights.items())[::4]:
    sums = [A.sum(axis)[0, 0] for axis in (3, 2)]
    print(f"{name:34s} {tuple(A.shape)}  rows sum to {sums[0].min():.2f} to {sums[0].max():.2f}, "
          f"columns to {sums[1].min():.2f} to {sums[1].max():.2f}")

# %% [markdown]
# The sums tell the axes apart, which helps, because a heat map carries no arrow. A column's sum has a
# meaning of its own: how much attention a key gets from all queries together. In the decoder the mask helps as well: the
# empty triangle must lie *above* the diagonal. The folded cell checks that weights times values, times $W^O$, are what the
# module puts out.

# %% tags=["hide-cell"]
outputs, attention = {}, model.encoder.layers[1].self_attention
hook = attention.register_forward_hook(lambda module, args, output: outputs.update(x=args[0], output=output))
with torch.inference_mode():
    model.encode(source)
hook.remove()
assert len(weights) == 3 * N
assert all(torch.allclose(A.sum(-1), torch.ones(A.shape[:-1])) for A in weights.values())
encoder_A, decoder_A = weights["encoder.layers.1.self_attention"][0, 0], weights["decoder.layers.0.self_attention"][0, 0]
assert (decoder_A.triu(1) == 0).all() and (encoder_A.sum(dim=0) - 1).abs().max() > 0.05
with torch.inference_mode():
    _, values = attention.keys_and_values(outputs["x"])
    joined = (weights["encoder.layers.1.self_attention"] @ values).transpose(1, 2).flatten(-2)
    assert_close(attention.W_O(joined), outputs["output"])

# %% [markdown]
# (section-viz-explorer)=
# ## Every head, to play with
#
# The model has $3 \cdot 3 \cdot 4 = 36$ heads, and the paper shows a handful. With `explore_attention` we see all of ours.
# Choose an attention, a layer and a head; point at a query, and the lines and numbers show where it looks. With the
# keyboard, Tab goes from control to control and then to the queries; there, the arrows up and down choose the query, left
# and right the head.

# %% tags=["nbval-ignore-output"]
explorer = explore_attention(model, tokenizer, source_text, target_text, kinds=["cross", "encoder", "decoder"], layer=3)
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
# Does a head of ours connect *making* with *more difficult*? From here on we look at whole words: a word's weight *as a
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

torch.manual_seed(0)
untrained = Transformer(model.config).eval()
assert groups(["▁a", "▁m", "ak", "ing", "."]) == [[0], [1, 2, 3], [4]]

# %% tags=["hide-cell"]
def draw_lines(ax, words, heads, queries=None, bold=(), least=0.1):
    """Queries above, keys below; a line's strength is the weight, its colour the head."""
    for k, ((name, A), color) in enumerate(zip(heads.items(), PALETTE)):
        shift = 0.12 * (k - (len(heads) - 1) / 2)  # lines of several heads end side by side
        for i in range(len(words)) if queries is None else queries:
            for j, weight in ((j, weight) for j, weight in enumerate(A[i].tolist()) if weight > least):
                ax.plot((i, j + shift), (1, 0), color=color, alpha=min(1, 0.3 + weight), linewidth=0.8 + 2.2 * weight)
        ax.plot([], [], color=color, label=name)
    for j, word in enumerate(words):
        style = {"rotation": 90, "ha": "center", "fontsize": 8.5, "weight": "bold" if word in bold else "normal"}
        ax.text(j, 1.05, word, va="bottom", **style), ax.text(j, -0.05, word, va="top", **style)
    ax.set(xlim=(-0.7, len(words) - 0.3), ylim=(0, 1))
    ax.axis("off")

# %% tags=["hide-cell"]
def display_light(figure):
    """Show a figure of many lines in 24 colours, at a quarter of the bytes."""
    drawn, light = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, dpi=100, bbox_inches="tight")
    plt.close(figure)
    PIL.Image.open(drawn).convert("RGB").quantize(24, dither=PIL.Image.Dither.NONE).save(light, "PNG", optimize=True)
    display(Image(light.getvalue()))

# %% mystnb={"image": {"alt": "Two rows of the words of the sentence, queries above and keys below. Coloured lines, one colour for each of four heads of a layer, go down from making. More and difficult are in bold."}, "figure": {"caption": "The paper's Figure 3 in our encoder: where *making* looks, in the four heads of the layer whose best head gives most to *more difficult*. Queries above, keys below; weights of less than 0.1 are left out, here and below.", "name": "fig-viz-spirit"}} tags=["row-F3", "hide-input"]
words, W = read(SPIRIT)
making, more = words.index("making"), words.index("more")
found_3, layer, head, name_3 = numbered(W[:, :, making, more:more + 2].sum(-1))
assert_close(W.sum(-1), torch.ones(W.shape[:-1]))
assert words[more + 1] == "difficult" and found_3 > 2 / len(words)  # more than even weights
figure, ax = plt.subplots(figsize=(6.6, 3.4), layout="constrained")
draw_lines(ax, words, {f"{layer + 1}.{i + 1}": W[layer, i] for i in range(h)}, [making], ("making", "more", "difficult"))
figure.legend(loc="outside lower center", ncols=h, frameon=False, title="layer.head", title_fontsize=8.5)
plt.show()

# %% [markdown]
# Only thin lines reach *more difficult*: the best head gives 0.23 to the two words together. Is that much? We
# *searched* for this head, and the largest of 12 numbers is large even where there is nothing to find. So here is a
# control: the same search for every query of the sentence and every two neighbouring words at least as far away as
# *more* is from *making*.

# %%
def searches(W, width, far):
    """The best head's share, for every query and every `width` neighbouring words so far away or farther."""
    L = W.size(-1) - 1  # the end of the sentence is left out
    return torch.tensor([W[:, :, i, j:j + width].sum(-1).max() for i in range(L) for j in range(L - width + 1)
                         if i - j - width + 1 >= far or j - i >= far])

def verdict(share, control):
    as_good = (control >= share).double().mean().item()
    return f"{as_good:.0%} of {len(control)} searches do as well: {'no evidence' if as_good > 0.05 else 'worth a closer look'}"

print(f"making -> more difficult: {name_3} gives {found_3:.2f}; the best untrained head "
      f"{read(SPIRIT, untrained)[1][:, :, making, more:more + 2].sum(-1).max():.2f}")
print(verdict(found_3, searches(W, 2, more - making)))

# %% [markdown]
# One search in eleven finds as much, so this head is no evidence, though its line looks good in a picture. Every "head that
# does X" needs such a control; the paper gives none. The effect may well be real in its model, which had 4.5 million pairs to
# learn from.

# %% [markdown]
# ## Figure 4: what a pronoun refers to
#
# How much does *its* look at *Law*? We print the best share that any head gives to *Law*, and draw the layer of the
# head that gives most to any one word beside *its* itself.

# %% tags=["hide-cell"]
words, W = read(LAW)
its, law, application = (words.index(word) for word in ("its", "Law", "application"))

# %% mystnb={"image": {"alt": "Two rows of the words of the sentence with coloured lines from its to the keys below, one colour for each of four heads of the last layer. Law and application are in bold; lines of three heads go to application, two of them strong, the fourth head's go to the comma and but, and none goes to Law."}, "figure": {"caption": "The paper's Figure 4 in our encoder: where *its* looks, in the four heads of the layer that holds the sharpest one.", "name": "fig-viz-law"}} tags=["row-F4", "hide-input"]
found_4, *_, name_law = numbered(W[:, :, its, law])
elsewhere = W[:, :, its].index_fill(-1, torch.tensor(its), 0.0)
sharpest, layer_4, head_4, name_4 = numbered(elsewhere.amax(-1))
untrained_4 = read(LAW, untrained)[1][:, :, its, law].max().item()
print(f"its -> Law: at most {found_4:.2f} ({name_law}); untrained {untrained_4:.2f}")
print(f"sharpest: {name_4} gives {sharpest:.2f} to {words[elsewhere[layer_4, head_4].argmax()]}")
assert (round(untrained_4, 2), round(found_4, 2)) == (0.36, 0.04) and sharpest > 10 * found_4 and elsewhere[layer_4, head_4].argmax() == application
figure, ax = plt.subplots(figsize=(6.6, 3.3), layout="constrained")
draw_lines(ax, words, {f"{layer_4 + 1}.{i + 1}": W[layer_4, i] for i in range(h)}, [its], ("its", "Law", "application"))
figure.legend(loc="outside lower center", ncols=h, frameon=False, title="layer.head", title_fontsize=8.5)
plt.show()

# %% [markdown]
# The picture is as sharp as the paper's, and shows something else. Our *its* looks at what is owned, the *application*,
# and hardly at the owner. The best untrained head gives *Law* 0.36, the best trained one 0.04, so a large share of one
# word in one sentence says little by itself. Does the same head do this in other sentences? We take eight with *its*, in
# which we know the owner and the thing, and the same searches in an untrained model as a control.

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
its_gives, control_4 = shares_of_its(model), shares_of_its(untrained).mean(0)
owner, thing = its_gives[:, :, layer_4, head_4].mean(0).tolist()
print(f"{name_4}, in eight other sentences: {thing:.2f} to the thing, {owner:.2f} to the owner")
print(f"the best untrained head: {control_4[1].max():.2f} to the thing, {control_4[0].max():.2f} to the owner")
print(f"the best head for the owner: {its_gives.mean(0)[0].max():.2f}")
of_the = [A[layer_4, head_4, 0, words.index(names.split()[0])]
          for text, names in OWNED.items() for words, A in [read(text)]]
print(f"{name_4}, from The or This to its noun: {sum(of_the) / 8:.2f}")
for text in ("The company sold its new building.", "This city is known for its old bridges."):
    print(text, "->", *Translator(model, tokenizer).translate([text]))

# %% mystnb={"image": {"alt": "Pairs of horizontal bars for nine sentences: the share that one head's its gives to the thing owned, mostly long, and to the owner, short everywhere."}, "figure": {"caption": "What *its* gives to the thing and to its owner, in the head that was found in the sentence about the Law (first pair of bars).", "name": "fig-viz-control"}} tags=["hide-input", "row-F4"]
bars = {"The Law ... its application": W[layer_4, head_4, its, [law, application]],
        **{text: found[:, layer_4, head_4] for text, found in zip(OWNED, its_gives)}}
figure, ax = plt.subplots(figsize=(6.6, 3.4), layout="constrained")
for shift, side, color in ((-0.2, 1, PALETTE[0]), (0.2, 0, PALETTE[1])):
    ax.barh([y + shift for y in range(len(bars))], [share[side] for share in bars.values()], 0.36,
            color=color, label=("the owner", "the thing")[side])
ax.set_yticks(range(len(bars)), labels=bars, fontsize=8)
ax.set(xlabel=f"share, {name_4}", xlim=(0, 1))
ax.invert_yaxis()
figure.legend(loc="outside upper center", ncols=2, frameon=False)
assert thing > 2 * control_4[1].max() and thing > 3 * owner
assert (its_gives[:, 1, layer_4, head_4] > 0.5).sum() == 7
plt.show()

# %% [markdown]
# The find holds in seven of the eight. (In the eighth, *The company sold its new building*, head 3.1 gives the thing
# 0.08, and head 3.4 does the job, with 0.87.) German tells us what it is good for: the *ending* of *sein-* agrees with
# the thing (*seine Anwendung*, *sein Dach*), so whoever translates *its* must look there. From *The* and *This* the
# same head gives nearly everything to the noun: it joins a determiner to its noun, and *der*, *die* or *das* depends on
# that noun too. The *stem* of *sein-* depends on the owner: what belongs to a feminine noun such as *Firma* or *Stadt*
# is *ihr*. This model looks at no owner (its best head gives it no more than the best untrained one), and its two
# translations above have *sein*, which is wrong. So the head follows grammar, and is no evidence of anaphora. Had we
# searched only for *Law*, we should have found nothing; had we trusted one sharp picture, we might have told the wrong
# story about it.

# %% [markdown]
# ## A minimal pair tests a reading
#
# The most often shown example comes from a later article by one of the authors {cite}`uszkoreit2017transformer`: *The
# animal didn't cross the street because it was too tired.* Change one word to *wide*, and *it* means the street. Such a
# **minimal pair** is a far better instrument than one sentence: if a head follows what *it* means, its weight must
# move. In the article it does, in one of eight heads of the last encoder layer. For each noun we take our best head in
# the first sentence, among layers 2 and 3, and count a change of more than 0.1 as a move. (In layer 1 a head cannot
# pass: there the vectors of *it*, *animal* and *street* have not yet met the last word.)

# %% mystnb={"image": {"alt": "Two drawings of two rows of words with lines from it, for the sentences with tired and with wide. Blue lines are the head that looks most at animal, orange lines the head that looks most at street."}, "figure": {"caption": "The minimal pair in our encoder: the lines of *it* in the best head for *animal* and the best head for *street*, chosen in the first sentence.", "name": "fig-viz-pair"}} tags=["row-F7", "hide-input", "nbval-ignore-output"]
pair = {last: read(f"The animal didn't cross the street because it was too {last}.") for last in ("tired", "wide")}
words = pair["tired"][0]
it, best = words.index("it"), {}
for noun in ("animal", "street"):  # in layers 2 and 3
    tired, wide = (A[:, :, it, words.index(noun)] * (torch.arange(N) > 0)[:, None] for _, A in pair.values())
    _, layer, head, name = numbered(tired)
    best[f"{name} (best for {noun})"] = layer, head
    largest, *_, moved = numbered((wide - tired).abs())
    print(f"it -> {noun}: {name}: {tired[layer, head]:.2f} (tired), {wide[layer, head]:.2f} (wide); largest move {largest:.2f}, {moved}")
assert pair["wide"][0][:-3] == words[:-3] and pair["wide"][0] != words and moved == "layer 3, head 4" and largest > 0.1
figure, axes = plt.subplots(1, 2, figsize=(6.6, 2.9), layout="constrained")
for ax, (drawn, A) in zip(axes, pair.values()):
    draw_lines(ax, drawn, {name: A[i, j] for name, (i, j) in best.items()}, [it], ("it", "animal", "street"))
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
plt.show()

# %% [markdown]
# The two best heads stay where they are: they look at nouns in general, say. One head of the eight moves by more than
# 0.1: layer 3, head 4 gives *street* 0.07 with *tired* and 0.19 with *wide*. Found by a search in a single pair, it is
# a hypothesis to test. Does the model need to know at all? In German the pronoun must agree with its noun (*das Tier,
# es*; *die Straße, sie*), so for this pair it does. Evidence takes thousands of sentences: {cite:t}`muller2018large`
# let models choose German pronouns in 12,000 of them, and {cite:t}`voita2018context` compare attention with
# coreference.

# %% [markdown]
# ## Figure 5: do the heads perform different tasks?
#
# The paper draws two heads of one layer. We do the same with the two heads of our layer 2 that differ most on the paper's
# sentence. The difference between two heads is the share of weight that we would have to move to turn one into
# the other, averaged over the queries.

# %% mystnb={"image": {"alt": "Two drawings, one above the other, of the sentence about the Law: words above and below, with lines from every query to its keys, for the two most different heads of a layer."}, "figure": {"caption": "The paper's Figure 5 in our encoder: the two heads of layer 2 that differ most on this sentence, with all weights above 0.1.", "name": "fig-viz-two-heads"}} tags=["row-F5", "hide-input"]
def differences(W):
    """(N, h, h): the share of the weight to move from one head to another, mean over the words as queries."""
    W = W[:, :, :-1]
    return 0.5 * (W[:, :, None] - W[:, None]).abs().sum(-1).mean(-1)

words, W = read(LAW)
apart = differences(W)[1]
two = divmod(apart.argmax().item(), h)
figure, axes = plt.subplots(2, 1, figsize=(6.6, 5.4), layout="constrained")
for ax, i in zip(axes, sorted(two)):
    draw_lines(ax, words, {f"{i + 1}": W[1, i]})
    ax.text(-1.6, 0.5, f"layer 2, head {i + 1}", rotation=90, va="center")
assert apart.max() > 0.5
display_light(figure)

# %% [markdown]
# The two differ plainly, but have they *learned* to differ? Heads with random weights differ as well, so our control is a
# model that was never trained.

# %% tags=["row-F5"]
between_heads = {name: torch.stack([differences(read(english, of)[1]).sum((1, 2)) / (h * (h - 1)) for english, _ in sentences]).mean(0)
                 for name, of in (("trained", model), ("untrained", untrained))}
for name, layers in between_heads.items():
    print(f"{name:9s} weight to move between two heads:", ", ".join(f"layer {i + 1} {x:.2f}" for i, x in enumerate(layers)))
more_apart = [i + 1 for i in range(N) if between_heads["trained"][i] > between_heads["untrained"][i] + 0.02]
assert more_apart
print(f"clearly farther apart than before training: layers {more_apart}")

# %% [markdown]
# "The heads clearly learned to perform different tasks" is thus more than a picture can show, and partly right: heads differ
# from the start, those of our layer 1 even more than after training, and in layers 2 and 3 training has driven them apart.
# Here are all 12 on the sentence about the car.

# %% mystnb={"image": {"alt": "Twelve small drawings in three rows of four, a row for each encoder layer: the ten words and marks above and below as positions, with a line from each query to its keys. The words are written below the last row."}, "figure": {"caption": "All heads of the encoder on *Tom sold his car because it was old.* In each drawing the words are queries above and keys below, in the order written under the last row.", "name": "fig-viz-all-heads"}} tags=["hide-input"]
words, W = read(source_text)
figure, axes = plt.subplots(N, h, figsize=(6.6, 3.9), layout="constrained")
for layer, row in enumerate(axes):
    for head, ax in enumerate(row):
        for i, weights_of_i in enumerate(W[layer, head].tolist()):
            for j, weight in enumerate(weights_of_i):
                if weight > 0.1:
                    ax.plot((i, j), (1, 0), color=PALETTE[0], alpha=min(1, 0.2 + weight), linewidth=0.4 + 1.5 * weight)
        ax.set(yticks=[], ylim=(0, 1), xlim=(-0.6, len(words) - 0.4), title=f"{layer + 1}.{head + 1}")
        ax.set_xticks(range(len(words)), labels=words if layer == N - 1 else [], rotation=90, fontsize=8)
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
display_light(figure)

# %% tags=["row-F5", "hide-cell"]
eos_share, previous = W[..., -1].mean(-1), W.diagonal(-1, 2, 3).mean(-1)
spread_out = -torch.special.xlogy(W, W).sum(-1).mean(-1) / math.log(2)
assert eos_share[0, :3].min() > 0.3 and eos_share[2].min() > 0.2 and previous.argmax() == 2 * h + 2
assert spread_out.argmax() == h + 1 and spread_out.max() > math.log2(len(words)) - 0.5

# %% [markdown]
# Three patterns have been described again and again, in BERT {cite}`clark2019what` and in translation models
# {cite}`voita2019analyzing`: parallel lines (the word before, after, or itself), a **fan** that meets in one key (most
# often the end or a full stop), and a **blur** over much of the sentence. Next to them both papers find a few heads that agree well with
# grammar. Ours has all of these: fans that meet in the end of the sentence in layers 1 and 3, a blur in 2.2, parallel lines
# in 3.3 (the word before), and in 3.1 the head for determiners.

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
    """Of each layer: how often the strongest key of the mean over heads is the human's."""
    right = []
    for maps, (_, _, alignment) in zip(crosses, ALIGNED):
        german, english, A = by_word(maps, getattr(maps, label))
        for link in alignment.split():
            target, source = link.split("-")
            right.append(A.mean(1)[:, german.index(target)].argmax(-1) == english.index(source))
    return torch.stack(right).double().mean(0)

scores = {label: agreement(label) for label in ("predicts", "queries")}
for i in range(N):
    print(f"layer {i + 1}: right for {scores['predicts'][i]:.0%} of the words it predicts, {scores['queries'][i]:.0%} of those it reads")
assert scores["predicts"][-1] > scores["queries"][-1]

# %% mystnb={"image": {"alt": "Three maps of encoder-decoder attention on white, one for each layer: predicted German words down, English words across. Orange boxes mark the alignment by hand; gekauft comes late in German, bought in the middle in English."}, "figure": {"caption": "Encoder-decoder attention, mean of a layer's heads. A row is labelled with the word that it predicts; boxes are the alignment by hand. *gekauft* (bought) comes at the end in German.", "name": "fig-viz-cross"}} tags=["hide-input"]
german, english, A = by_word(crosses[0], crosses[0].predicts)
figure, axes = plt.subplots(1, N, figsize=(6.8, 3.2), layout="constrained", sharey=True)
for layer, ax in enumerate(axes):
    image = ax.imshow(A[layer].mean(0), cmap=INK, vmin=0, vmax=1)
    ax.set_xticks(range(len(english)), labels=english, rotation=90, fontsize=8)
    ax.set_yticks(range(len(german)), labels=german, fontsize=8)
    ax.set(title=f"layer {layer + 1}", ylabel="" if layer else "query, by what it predicts")
    for target, source_word in (link.split("-") for link in ALIGNED[0][2].split()):
        corner = (english.index(source_word) - 0.5, german.index(target) - 0.5)
        ax.add_patch(plt.Rectangle(corner, 1, 1, fill=False, edgecolor=PALETTE[1], linewidth=1.2))
figure.colorbar(image, ax=axes, label="weight", shrink=0.7)
plt.show()

# %% [markdown]
# In the last layer the alignment belongs to the word that is being *predicted*: the search for the next word is what that
# layer is for. Layer 1 aligns the word just *read*, whose embedding is most of its query, so its marks lie one row too
# low. Attention agrees with human alignment for nouns more than for verbs, whose translation needs more of the sentence
# {cite}`ghader2017what`.

# %% [markdown]
# ## All heads, described by numbers
#
# What does a head do on average? We split the attention of every word in the fifty sentences into five parts: on the end of the sentence (*eos*), on
# the token before, on itself, on the token after, and the rest.

# %% tags=["hide-cell"]
pairs = [(tokenizer.encode(english), tokenizer.encode(german)) for english, german in sentences]
batch = make_batch(pairs)
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
assert all(((part > -1e-5) & (part < 1 + 1e-5)).all() for part in profile.values()) and (bits > -1e-4).all()

# %% mystnb={"image": {"alt": "Left: twelve stacked horizontal bars, one for each encoder head, which split its attention into previous token, itself, next token, end of sentence and other. Right: the entropy of each head in bits, as dots, with a dashed line for even weights."}, "figure": {"caption": "Every encoder head on the fifty sentences. Left: where the attention of a word goes. Right: its entropy; the dashed line is that of even weights.", "name": "fig-viz-measures"}} tags=["hide-input"]
names = [f"{layer}.{head}" for layer in range(1, N + 1) for head in range(1, h + 1)]
figure, (left, right) = plt.subplots(1, 2, figsize=(6.4, 4), layout="constrained", sharey=True, width_ratios=(2.2, 1))
start = torch.zeros(N * h)
for (name, part), color in zip(profile.items(), (*PALETTE[:4], "#BBBBBB")):
    left.barh(names, part.flatten(), left=start, color=color, label=name)
    start += part.flatten()
assert_close(start, torch.ones(N * h))
right.plot(bits.flatten(), names, "o", markersize=4)
right.axvline(even_bits, linestyle="--", color="grey")
left.set(xlabel="share of the attention", ylabel="layer.head", xlim=(0, 1))
left.invert_yaxis()
right.set(xlabel="entropy (bits)", xlim=(-0.1, None))
figure.legend(loc="outside upper left", ncols=5, frameon=False)
plt.show()

# %% [markdown]
# In our model six of the twelve heads give 40 to 50 percent of their weight to `</s>`. A sharp head may still have
# found nothing: one that gives all its weight to *eos* has 0 bits. {cite:t}`clark2019what` see the same with `[SEP]` in
# BERT, and read it as heads with **nothing to do**. Weights must sum to 1, so a head with nothing to add needs a place
# to rest, and exercise {ref}`ex-viz-norms` tests that reading.

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
# `with` block. We remove each of the 36 heads in turn and measure the loss on the fifty sentences, in nats per token.

# %% tags=["hide-cell"]
with torch.inference_mode():
    x, A_x = outputs["x"], explorer.maps[1].weights[1][None]  # layer 2 on the sentence about the car
    terms = [(A_x @ values)[:, i] @ attention.W_O.weight.unflatten(1, (h, -1))[:, i].T for i in range(h)]
    assert_close(sum(terms), outputs["output"])
    with knocked_out((attention, 1)):
        assert_close(attention(x, x), outputs["output"] - terms[1])
    assert_close(attention(x, x), outputs["output"])

# %% tags=["nbval-ignore-output"]
modules = {f"{name}, layer {i + 1}": getattr(layer, part)
           for name, layers, part in (("encoder self", model.encoder.layers, "self_attention"),
                                      ("decoder self", model.decoder.layers, "self_attention"),
                                      ("encoder-decoder", model.decoder.layers, "cross_attention"))
           for i, layer in enumerate(layers)}
all_heads = [(module, i) for module in modules.values() for i in range(h)]

def loss_without(*heads):
    with knocked_out(*heads):
        return math.log(perplexity(model, pairs))

whole = loss_without()
change = torch.tensor([loss_without(head) - whole for head in all_heads]).view(-1, h)
print(f"whole model: {whole:.3f} nats; one head less costs {change.median():.4f} (median) to {change.max():.3f} (most)")

# %% mystnb={"image": {"alt": "Map of the change of the loss when one head is removed: nine rows for three attentions in three layers, four columns for heads, with the number written in each cell and a colour bar."}, "figure": {"caption": "What the model loses without one head: change of the loss in nats per token. Darker is worse.", "name": "fig-viz-knock-out"}} tags=["hide-input"]
figure, ax = plt.subplots(figsize=(5.8, 3.2), layout="constrained")
image = ax.imshow(change, cmap=INK, aspect="auto", vmin=0)
for row in range(len(modules)):
    for i in range(h):
        color = "white" if change[row, i] > 0.4 * change.max() else "black"
        ax.text(i, row, f"{change[row, i]:.3f}", ha="center", va="center", color=color, fontsize=8)
ax.set_yticks(range(len(modules)), labels=modules)
ax.set_xticks(range(h), labels=range(1, h + 1))
ax.set_xlabel("head")
figure.colorbar(image, ax=ax, label="nats per token")
assert change.max() > 0.02 and change.median() < change.max() / 4
assert change.argmax().item() // h >= 2 * N  # in the encoder-decoder attention
plt.show()

# %% [markdown]
# ```{translator} knock-out
# :text: Tom sold his car because it was old.
# ```
#
# The four heads of the last encoder-decoder attention cost most, 0.08 to 0.10 nats each: here the decoder looks at the
# source for the last time before it chooses a token. The median head costs 0.002, and eight of the 36 can be removed one at a time
# without harm. These are common sentences, on which the model's loss is 0.21 nats, against 1.78 on the test split. One
# at a time is a weak test, since other heads can do a missing one's work. So we remove more and more heads, the
# cheapest first.

# %% mystnb={"image": {"alt": "Line chart of the change of the loss against the number of heads removed, from none to all 36, the cheapest first: flat up to 8, rising from 12 on, steepest after 28."}, "figure": {"caption": "Heads removed one after the other, the cheapest first. The last point has no attention at all.", "name": "fig-viz-pruning"}} tags=["hide-input"]
order, counts = change.flatten().argsort(), [*range(0, 36, 4), 36]
curve = [loss_without(*(all_heads[j] for j in order[:count])) - whole for count in counts]
ax = plt.subplots(figsize=(5, 2.4), layout="constrained")[1]
ax.plot(counts, curve, marker="o")
ax.set(xlabel="heads removed of 36, cheapest first", ylabel="change of the loss\n(nats per token)", xticks=counts)
assert abs(curve[0]) < 1e-6 and curve[-1] > 1 and curve[counts.index(8)] < 0.25 * curve[-1]
plt.show()

# %% [markdown]
# {cite:t}`michel2019sixteen` draw this curve for a large translation model and for BERT: 20 and 40 percent of the heads
# go without noticeable harm. Here eight of 36 heads, 22 percent, go for 0.02 nats; twelve cost 0.12, and sixteen 0.28.
# {cite:t}`voita2019analyzing` let training choose, and remove 38 of 48 encoder heads for 0.15 BLEU; those that stay
# mostly have a recognisable role. We should keep in mind that removal says what *this* model depends on, while one
# trained without the head may do as well, and that a head replaced by zeros gives the next layer norm an input that it
# has never seen. ([Chapter 5.3](5_3_optimizer.ipynb) therefore measures it in a second way, with weights that are all
# equal.)

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
null_space = torch.linalg.svd(constraints).Vh[d_v + 1:]  # the vectors that it sends to zero
directions = torch.randn(1000, len(null_space), dtype=torch.float64) @ null_space
steps = torch.where(directions < 0, -alpha / directions, math.inf).min(dim=1).values  # until a weight is 0
others = alpha + steps[:, None] * directions
moved = 0.5 * (others - alpha).abs().sum(dim=1)
other = others[moved.argmax()]
print(f"{where}: {moved.max():.1%} of the weight lies elsewhere, the output differs by {(other @ V - alpha @ V).abs().max():.0e}")
assert (other > -1e-12).all() and torch.allclose(other @ V, alpha @ V) and moved.max() > 0.001

# %% [markdown]
# Up to $d_v + 1$ tokens, the output generally determines the weights, so this doubt grows with the text.
#
# **A weight is only part of a contribution.** What reaches the output is $A_{ij}\, v_j W^O$, and a large weight on a short
# vector is little. {cite:t}`kobayashi2020attention` measure lengths instead, and most of BERT's attention to separators
# disappears ({ref}`ex-viz-norms`).
#
# **A position's vector mixes all words**, since from the second layer on the other words have added to it. We replace *old* by
# *new* and see how far the change spreads through the encoder.

# %% mystnb={"image": {"alt": "Bar chart: relative change of the encoder's output at each of the ten tokens when old is replaced by new. The bar at the replaced word is the highest; every other token has a bar too."}, "figure": {"caption": "*old* is replaced by *new*: relative change of the encoder's output at each position.", "name": "fig-viz-mixed"}} tags=["hide-input"]
one, two = (torch.tensor([[*tokenizer.encode(f"Tom sold his car because it was {last}."), model.config.eos_id]])
            for last in ("old", "new"))
with torch.inference_mode():
    difference = (model.encode(one) - model.encode(two)).norm(dim=-1)[0] / model.encode(one).norm(dim=-1)[0]
changed, pieces = (one != two)[0], tokenizer.pieces(one[0].tolist())
assert changed.sum() == 1 and difference[changed].item() == difference.max() and (difference > 0).all()
ax = plt.subplots(figsize=(5, 2.2), layout="constrained")[1]
ax.bar(range(len(pieces)), difference, color=[PALETTE[1] if c else PALETTE[0] for c in changed])
ax.set_xticks(range(len(pieces)), labels=pieces, rotation=45)
ax.set_ylabel("relative change")
plt.show()

# %% [markdown]
# The change reaches every position of the sentence: a quarter of the length at *was*, but only two percent at *Tom* or
# *car*. So a position's vector holds something of all words, and far from equally. **Attention rollout**
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
# - A head found by searching needs a control: the same search elsewhere, the same head in other sentences, an untrained
#   model.
# - Entropy (equation {eq}`viz-entropy`) and shares describe all heads; a removal (equation {eq}`viz-sum`) says what the
#   model needs. Ours loses more than half of its BLEU without the encoder's self-attention.
# - Weights alone do not explain: other weights can give the same output, and a position's vector mixes all words.
#
# :::{dropdown} Where this is
# Code: `record_attention` in `annotated_transformer/looking/record.py`; beside it `explore_attention` in
# `explorer.py`, `knocked_out` in `knock_out.py` and `attention_report` in `report.py`. Tests: `tests/looking/`, and
# `tests/lab/experiments/test_knock_out.py`.
# :::

# %% [markdown]
# ## Exercises
#
# ```{exercise} Which way round?
# :label: ex-viz-axes
#
# Somebody hands you a square matrix of attention weights with unlabelled axes. Write `queries_are_rows(A)`. For which
# matrices is it impossible to tell?
# ```
#
# ```{solution} ex-viz-axes
# :class: dropdown
#
# Compare the sums of the rows and of the columns with 1. If both are 1 (a *doubly stochastic* matrix, such as even
# weights, or a head that always looks at the token itself), the sums are silent.
# ```

# %% tags=["hide-cell"]
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

# %% [markdown]
# ```{exercise} The best of a crowd
# :label: ex-viz-control
#
# Search the 12 encoder heads of an untrained model for the one whose *its* looks most at *Law*. By how much does its
# share exceed an even spread over the sentence's tokens? What does that say about "we found a head that ..."?
# ```
#
# ```{solution} ex-viz-control
# :class: dropdown
#
# The best of 12 random heads has almost ten times the even share (0.36 against 0.04), though the model knows nothing. A
# find counts from where it exceeds what a search among as many heads gives *without* the thing to be found.
# ```

# %% tags=["hide-cell"]
even = 1 / len(read(LAW)[0])
print(f"even {even:.3f}, best of 12: {untrained_4:.3f}")
assert untrained_4 > 2 * even

# %% [markdown]
# ```{exercise} How spread can it be?
# :label: ex-viz-entropy
#
# What is the largest entropy of row $i$ (counted from 1) of a *causal* head, in bits? What is the largest mean over the
# rows of a sentence of 8 tokens, and why is it unfair to compare it with an encoder head's?
# ```
#
# ```{solution} ex-viz-entropy
# :class: dropdown
#
# Row $i$ sees $i$ keys, so $\log_2 i$. The mean for 8 tokens is $\frac{1}{8} \log_2 8! = 1.912$ bits, against 3 for an
# encoder head, because early rows have little to choose from. Divide by the largest possible value before you compare.
# ```

# %% tags=["hide-cell"]
causal = torch.ones(8, 8).tril()
causal = causal / causal.sum(-1, keepdim=True)
of_rows = -torch.special.xlogy(causal, causal).sum(-1) / math.log(2)
assert_close(of_rows, torch.arange(1, 9).float().log2())
assert_close(of_rows.mean().item(), math.log2(math.factorial(8)) / 8)
print(f"{of_rows.mean():.3f}")

# %% [markdown]
# ```{exercise} Rollout
# :label: ex-viz-rollout
#
# Attention rollout mixes each layer's mean weights with the residual path, $\hat A = \frac{1}{2} (A + I)$, and multiplies
# the layers: $\hat A_N \cdots \hat A_1$. Show that its rows sum to 1. Name two things that it leaves out.
# ```
#
# ```{solution} ex-viz-rollout
# :class: dropdown
#
# If $A\mathbf{1} = \mathbf{1}$ and $B\mathbf{1} = \mathbf{1}$, then $AB\mathbf{1} = A\mathbf{1} = \mathbf{1}$. It leaves
# out the values and $W^O$, the feed-forward layers and layer norms, and the differences between heads. The half for the
# residual path is a convention.
# ```

# %% tags=["hide-cell"]
rollout = torch.eye(len(encoder.keys))
for A_layer in encoder.weights.mean(1):
    rollout = 0.5 * (A_layer + torch.eye(len(A_layer))) @ rollout
assert_close(rollout.sum(-1), torch.ones(len(rollout)))
assert (rollout > 0).all() and (rollout.diagonal() >= 0.5**N - 1e-6).all()  # the residual path alone

# %% [markdown]
# ```{exercise} A decoder that cannot see
# :label: ex-viz-blind
#
# Knock out all heads of encoder-decoder attention. What kind of model is left, and how does its output depend on the source?
# ```
#
# ```{solution} ex-viz-blind
# :class: dropdown
#
# A language model of German: the logits are the same for *every* source. The loss rises by almost four nats. (One
# trained as a language model should do better: this one never learned to do without the source.)
# ```

# %% tags=["hide-cell"]
cross_heads = all_heads[2 * N * h:]
with torch.inference_mode():
    seen = [model(rows, batch.target_in) for rows in (batch.source, batch.source.flip(0))]
    with knocked_out(*cross_heads):
        blind = [model(rows, batch.target_in) for rows in (batch.source, batch.source.flip(0))]
assert_close(*blind)
assert not torch.allclose(*seen, atol=0.1) and loss_without(*cross_heads) - whole > 1

# %% [markdown]
# ```{exercise} Lengths instead of weights
# :label: ex-viz-norms
#
# For one sentence, compute $\lVert A_{ij}\, v_j W_i^O \rVert$ for every query and key of each encoder head. What share of
# the lengths does eos get, and what share of the weights? Does that support "a head that looks at eos rests"?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# $A_{ij}$ is a positive number, so it comes out of the norm. A forward hook gives you the input of each module.
# ```
#
# ```{solution} ex-viz-norms
# :class: dropdown
#
# Where the share of the lengths is well below that of the weights, eos hands on a shorter vector than a word does,
# which supports the reading. So it is in layers 1 and 3 of this sentence (34 percent of the weights and 20 of the
# lengths, 36 and 15); in layer 2 the difference is small (11 and 8). Whether a head really rests there, only a removal
# decides.
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
