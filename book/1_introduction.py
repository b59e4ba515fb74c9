# %% [markdown]
# # 1 Introduction: one sentence, from text to text
#
# *My sister has bought a green umbrella.* This chapter follows that sentence through a whole Transformer: from a pair
# of strings to tokens, ids, a batch, vectors, probabilities, a loss and an update of the weights; then, with the
# weights that some dozens of updates give, through the search that writes it in German, and to a score. At every
# arrow you see the value, its type and its shape, and a line that fails if we have described it wrongly.
#
# The later chapters open the boxes, one by one. Here you learn where they stand and what passes between them. The
# whole chapter runs in half a minute on one core, without a network and without a corpus: its sentences stand in it.

# %% [markdown]
# ## 1.1 What the paper sets out to do
#
# A translator reads one sequence and writes another. When the paper {cite}`vaswani2017attention` appeared, in 2017,
# the best systems that did so were **recurrent**: one network, applied to word after word, carries a state along
# {cite}`sutskever2014sequence,cho2014learning`,
#
# $$ h_t = f(h_{t-1}, x_t). $$
#
# The state at word $t$ waits for the state at word $t - 1$, and that one for the state before it. However many
# arithmetic units a machine has, it walks through a sentence of $n$ words in $n$ steps. That is the first section's
# complaint: a sentence cannot be spread over the machine, and a batch of long sentences fills its memory.
#
# **Convolutional** systems, the second section's subject, compute all positions at once. But a kernel of width $k$
# sees $k$ neighbours, so the first and the last word of a sentence meet only after a stack of layers: a number of
# layers that grows in step with $n$ for kernels side by side {cite}`gehring2017convolutional`, or with its logarithm
# for kernels with ever wider gaps.
#
# **Attention** existed too, as an addition to a recurrent network {cite}`bahdanau2015neural`: at each output word, a
# weighted average over all input words, with weights that depend on their content. The paper's proposal is to keep
# that part and to drop what it was added to. In the words of its abstract, the Transformer is
#
# > based solely on attention mechanisms, dispensing with recurrence and convolutions entirely.
#
# Now any two positions are one step apart, and all positions of a layer are computed together. The price is a weight
# for every pair of positions, $n^2$ of them, and an average that blurs; several heads are there to sharpen it again
# (section 3.2).

# %% [markdown]
# ### Counted, not timed
#
# Time depends on the machine. What must wait for what does not, and PyTorch knows it: each tensor remembers the
# operation it came from, and each operation the ones whose results it used. The longest chain of **matrix products**
# in that graph is the number of products that no amount of hardware can do at the same time.

# %%
import torch
from torch import nn

from annotated_transformer.looking.visualization import show
from annotated_transformer.tables.cost import longest_chain

show(longest_chain)

# %% [markdown]
# Three ways to compute, from $n$ vectors, one vector for the last position that has taken in the first: a recurrent
# cell walked along the sentence; convolutions that look back, one upon the other until the first input has a
# gradient at the last output; and one layer of attention, with the function that [section 3.2](3_2_attention.ipynb)
# builds.

# %%
from annotated_transformer import scaled_dot_product_attention

def recurrence(x, d=8):
    cell, h = nn.RNNCell(d, d), torch.zeros(1, d)
    for x_t in x:
        h = cell(x_t[None], h)
    return h

def attention(x, d=8):
    q, k, v = (nn.Linear(d, d, bias=False)(x) for _ in range(3))
    return scaled_dot_product_attention(q, k, v)[-1:]

# %%
def convolutions(x, dilated, d=8, k=3):
    def sees_the_first(y):
        last = y[:, -1].sum()
        [grad] = torch.autograd.grad(last, x, retain_graph=True)
        return grad[0].any()

    y, gap = x.T, 1
    while not sees_the_first(y):
        padded = nn.functional.pad(y, ((k - 1) * gap, 0))
        y = nn.Conv1d(d, d, k, dilation=gap)(padded)
        gap = gap * k if dilated else 1
    return y[:, -1]

# %%
torch.manual_seed(0)
print("   n  recurrent  convolutions  dilated  attention")
for n in (9, 27, 81):
    x = torch.randn(n, 8, requires_grad=True)
    outputs = [recurrence(x), convolutions(x, dilated=False),
               convolutions(x, dilated=True), attention(x)]
    counts = [longest_chain(y) for y in outputs]
    print("{:4d}  {:9d}  {:12d}  {:7d}  {:9d}".format(n, *counts))
    log_3 = {9: 2, 27: 3, 81: 4}[n]
    assert counts == [n, (n - 1) // 2, log_3, 3]

# %% [markdown]
# For 81 words the recurrent cell needs 81 products in a row, plain convolutions of width 3 need 40 layers, dilated
# ones 4. Attention needs 3 at any length: the projection of $x$ to queries and keys, their product, and the product
# with the values.
#
# Two things this count does not say. It does not say how much work each step is: chapter 4 counts the operations,
# and there attention pays its $n^2$. And it is about reading. While it *writes* a translation, a Transformer too goes
# word by word, since each word depends on the words before it. What it gains there is training, where the whole
# target sentence is known and all its positions are computed at once ([1.4](section-decoder)).

# %% [markdown]
# ## 1.2 The map
#
# These are the stations. The letters are the book's: $B$ sentences in a batch, $S$ source tokens, $T$ target tokens,
# $D$ the width $d_{\text{model}}$ of the model, $V$ the size of the vocabulary ([notation](notation.md)).

# %% tags=["hide-input"]
stations = {  # name: (column, row, text, who passes here)
    "pair": (0.5, 0, "a pair of sentences\n(str, str)", "both"),
    "ids": (0.5, 1, "token ids\nlist[int], list[int]", "both"),
    "batch": (0.5, 2, "Batch: source (B, S)\n"
              "target_in, target_out (B, T)", "both"),
    "memory": (-0.15, 3.15, "embed, encode\nmemory (B, S, D)", "both"),
    "decoder": (1.1, 3.15, "embed, decode\n(B, T, D)", "both"),
    "logits": (1.1, 4.15, "logits\n(B, T, V)", "both"),
    "loss": (0.05, 5.15, "loss\nsummed, in nats", "learn"),
    "search": (1.1, 5.15, "greedy or beam search\none token a step", "write"),
    "adam": (0.05, 6.15, "Adam step\nat rate(step)", "learn"),
    "out": (1.1, 6.15, "ids, then text\nlist[int], str", "write"),
    "weights": (0.05, 7.15, "checkpoints, averaged\none directory", "learn"),
    "bleu": (1.1, 7.15, "BLEU\nscore and signature", "write"),
}

# %% tags=["hide-input"]
arrows = """pair ids, ids batch, batch memory, batch decoder, batch loss,
    memory decoder, decoder logits, logits loss, logits search,
    loss adam, adam weights, search out, out bleu, search decoder"""
labels = {  # what some of them carry, and where that is written
    "source": (-0.05, 2.55), "target_in": (1.1, 2.55),
    "target_out": (0.0, 4.1), "the new\ntoken": (1.6, 4.3),
}
look = {  # Okabe and Ito's colours
    "both": {"edgecolor": "black", "linestyle": "-"},
    "learn": {"edgecolor": "#0072B2", "linestyle": "--"},
    "write": {"edgecolor": "#D55E00", "linestyle": ":"},
}

# %% [markdown]
# Read the figure from top to bottom. Stations with a solid frame are passed in any case; the dashed ones on the left
# belong to learning, the dotted ones on the right to writing a translation.

# %% tags=["hide-input"] mystnb={"image": {"alt": "A flow chart in two columns. A pair of sentences becomes token ids, then a Batch of source, target_in and target_out. The source goes to the encoder, whose memory goes to the decoder; target_in goes to the decoder; the decoder gives logits. On the left, for learning: logits and target_out give the loss, the loss an Adam step, the steps checkpoints that are averaged. On the right, for writing: logits feed the search, whose new token goes back to the decoder; its ids become text, and the text a BLEU score."}}
from matplotlib import pyplot as plt
figure, axes = plt.subplots(figsize=(5, 6.2), dpi=90, layout="constrained")
centre = {"ha": "center", "va": "center"}
for name, (x, y, text, who) in stations.items():
    box = {"boxstyle": "round,pad=0.4", "facecolor": "white", **look[who]}
    stations[name] = axes.text(x, -y, text, fontsize=9, bbox=box, **centre)
for start, end in map(str.split, arrows.split(",")):
    bend = 0.75 if (start, end) == ("search", "decoder") else 0
    tips = {"patchA": stations[start], "patchB": stations[end], "arrowstyle": "->"}
    ends = stations[end].get_position(), stations[start].get_position()
    axes.annotate("", *ends, arrowprops={**tips, "connectionstyle": f"arc3,rad={bend}"})
for label, (x, y) in labels.items():
    axes.text(x, -y, label, fontsize=8, style="italic", **centre)
axes.set(xlim=(-0.6, 1.75), ylim=(-7.5, 0.4), frame_on=False, xticks=[], yticks=[])
plt.show()

# %% [markdown]
# ## 1.3 Text becomes numbers
#
# ### From a corpus to pairs
#
# A corpus is pairs of strings, `(source, target)`. The package has a registry of them: `tatoeba-en-de`, which
# [section 6.1](6_1_translation.ipynb) trains on, is one; another is made up on the spot, letters and the same letters
# in reverse. `corpus.load` gives every one in the same form.

# %%
from annotated_transformer import corpus

for source, target in list(corpus.load("reverse", "valid"))[:3]:
    print((source, target))
    assert target == source[::-1]

# %% [markdown]
# This chapter needs only 42 pairs, and here they are, written for it.

# %%
people = """I am tired. | Ich bin müde.
She is my sister. | Sie ist meine Schwester.
My sister has bought a green umbrella. | Meine Schwester hat einen grünen Schirm gekauft.
My brother has lost his key. | Mein Bruder hat seinen Schlüssel verloren.
We have read the long letter. | Wir haben den langen Brief gelesen.
The children are playing in the garden. | Die Kinder spielen im Garten.
Can you help me? | Kannst du mir helfen?
I have known her for two years. | Ich kenne sie seit zwei Jahren.
Our neighbour sings every morning. | Unser Nachbar singt jeden Morgen.
Who told you that? | Wer hat dir das gesagt?
They want to learn German. | Sie wollen Deutsch lernen.
He never forgets a name. | Er vergisst nie einen Namen.
My grandmother tells the best stories. | Meine Großmutter erzählt die besten Geschichten.
I did not understand the question. | Ich habe die Frage nicht verstanden."""

# %% tags=["hide-input"]
at_home = """The small dog sleeps under the table. | Der kleine Hund schläft unter dem Tisch.
The cat sees the bird. | Die Katze sieht den Vogel.
The bird sees the cat. | Der Vogel sieht die Katze.
There is still bread in the kitchen. | In der Küche ist noch Brot.
Please close the window. | Bitte schließ das Fenster.
The soup is too hot. | Die Suppe ist zu heiß.
He drinks coffee without sugar. | Er trinkt Kaffee ohne Zucker.
She has baked an apple cake. | Sie hat einen Apfelkuchen gebacken.
Where are my glasses? | Wo ist meine Brille?
The red chair is broken. | Der rote Stuhl ist kaputt.
We cook together on Sundays. | Sonntags kochen wir zusammen.
The light in the hall is on. | Das Licht im Flur ist an.
The milk has gone sour. | Die Milch ist sauer geworden.
Put the book on the shelf. | Stell das Buch ins Regal."""

# %% tags=["hide-input"]
outdoors = """It is raining again. | Es regnet schon wieder.
The train leaves at eight o'clock. | Der Zug fährt um acht Uhr ab.
We missed the last bus. | Wir haben den letzten Bus verpasst.
How far is it to the station? | Wie weit ist es bis zum Bahnhof?
Tomorrow I will go to the market. | Morgen gehe ich auf den Markt.
The river is very cold in spring. | Der Fluss ist im Frühling sehr kalt.
An old man sits by the lake. | Ein alter Mann sitzt am See.
The shop has already closed. | Der Laden hat schon geschlossen.
She rides her bicycle to work. | Sie fährt mit dem Rad zur Arbeit.
Two women are waiting for the doctor. | Zwei Frauen warten auf den Arzt.
You can see the mountains from here. | Von hier aus kann man die Berge sehen.
He has found a warm coat. | Er hat einen warmen Mantel gefunden.
The snow melts in the sun. | Der Schnee schmilzt in der Sonne.
Did you take a photograph? | Hast du ein Foto gemacht?"""

# %%
lines = "\n".join((people, at_home, outdoors)).splitlines()
pairs = [tuple(line.split(" | ")) for line in lines]
source_text, target_text = pairs[2]

print(len(pairs), "pairs; the one we follow:")
print(source_text, target_text, sep="\n")
assert len(pairs) == 42 and all(len(pair) == 2 for pair in pairs)

# %% [markdown]
# It is a good one to follow: *bought*, the fourth word, becomes *gekauft*, the last; *green* takes the ending that a
# masculine umbrella in the accusative asks for; and *ü* is not in ASCII.
#
# ### From a string to tokens and ids
#
# A model of whole words would need a place for each word form and would be helpless before a new one. A model of
# letters would need long sequences. The paper takes the way between: a **vocabulary** of frequent pieces. For English
# and German it is learned from the text by byte-pair encoding {cite}`sennrich2016neural`, one for both languages; for
# English and French the paper has word pieces, which are made in a similar way (section 5.1). Byte-pair encoding starts
# from single characters and again and again joins the pair of neighbours that occurs most often. 600 tokens are plenty
# for 84 sentences; the paper has about 37,000 for German, and 32,000 for French.

# %%
from annotated_transformer import Tokenizer

sentences = [sentence for pair in pairs for sentence in pair]
tokenizer = Tokenizer.train(sentences, vocab_size=600)
source_ids = tokenizer.encode(source_text)
target_ids = tokenizer.encode(target_text)

for text, ids in ((source_text, source_ids), (target_text, target_ids)):
    print(len(text), "characters,", len(ids), "tokens:")
    print(*tokenizer.pieces(ids))
    print(*ids)
    assert tokenizer.decode(ids) == text
V = tokenizer.vocab_size
assert all(type(i) is int and i < V for i in source_ids + target_ids)

# %% [markdown]
# `▁` stands for a space: *sister* has become one token of its own, *bought* did not occur often enough. An id is the
# token's row number in the vocabulary. Nothing is lost: decoding gives back every character, and text with signs that
# the vocabulary has never seen falls back to the 256 possible bytes.

# %%
strange = "Ein 🦔 grüßt: «привет»!"
print(*tokenizer.pieces(tokenizer.encode(strange)))
assert tokenizer.decode(tokenizer.encode(strange)) == strange
for sentence in sentences:
    assert tokenizer.decode(tokenizer.encode(sentence)) == sentence

# %% [markdown]
# ### From ids to a batch
#
# A GPU wants rectangles, and sentences are not. `make_batch` puts sentences side by side and fills the shorter ones
# up on the right with a token that means nothing, the **padding**, id 0. Three more ids are reserved: beginning of
# sentence (bos, 1), end of sentence (eos, 2) and unknown (3).

# %%
from annotated_transformer import make_batch

ids = [(tokenizer.encode(x), tokenizer.encode(y)) for x, y in pairs]
batch = make_batch([ids[2], ids[0]])  # ours, and "I am tired."
B, S, T = 2, len(source_ids) + 1, len(target_ids) + 1

for name in ("source", "target_in", "target_out"):
    print(name, tuple(getattr(batch, name).shape))
    for row in getattr(batch, name):
        print("   ", *tokenizer.pieces(row.tolist()))

# %% [markdown]
# Three tensors of ids come out; `<s>`, `</s>` and `<pad>` are the tokenizer's names for bos, eos and padding. The
# source ends in eos. The target is there twice, and this is the sentence to read
# slowly: `target_in`, what the decoder reads, starts with bos; `target_out`, what it is to predict, ends with eos. So
# at each position the decoder has read everything *before* the token that it is asked for. The paper says that the
# outputs are *shifted right*. Both have one token more than the sentence.

# %%
PAD, BOS, EOS = 0, 1, 2
assert batch.source.shape == (B, S)
assert batch.target_in.shape == batch.target_out.shape == (B, T)
assert batch.source[0].tolist() == [*source_ids, EOS]
assert batch.target_in[0].tolist() == [BOS, *target_ids]
assert batch.target_out[0].tolist() == [*target_ids, EOS]
assert batch.n_tokens == (batch.target_out != PAD).sum()
print(batch.n_tokens, "real target tokens in", B * T, "places")

# %% [markdown]
# Padding is work for nothing, so training puts sentences of similar length together, as the paper does.
# `token_batches` makes them for one epoch (one pass through the corpus): each pair once, at most `max_tokens` places
# on either side, the order drawn from a seed.

# %%
from annotated_transformer import token_batches

epoch = list(token_batches(ids, max_tokens=512, seed=1, epoch=0))
for each in epoch:
    places = each.target_out.numel()
    print(len(each.source), "sentences,", each.n_tokens, "target tokens,",
          places - each.n_tokens, "of padding")
    assert places <= 512 and each.source.numel() <= 512
assert sum(len(each.source) for each in epoch) == len(pairs)
n_tokens = sum(len(target) + 1 for _, target in ids)
assert sum(each.n_tokens for each in epoch) == n_tokens

# %% [markdown]
# ## 1.4 Numbers pass through the model
#
# A model is a configuration and weights. This one has two layers a stack and vectors of $D = 128$ numbers; the
# paper's base model has six and 512. Its weights are drawn at random from a fixed seed, so what follows is what an
# untrained model does. `.eval()` turns dropout off.

# %%
from annotated_transformer import ModelConfig, Transformer

config = ModelConfig.tiny(vocab_size=V, N=2, d_ff=256)
torch.manual_seed(1)
model = Transformer(config).eval()
D = config.d_model

print(f"{sum(w.numel() for w in model.parameters()):,} weights")
show(Transformer.forward)

# %% [markdown]
# The last two lines are the model: from two tensors of ids to logits, through an encoder and a decoder. We go through
# them from the inside out.
#
# ### From ids to vectors
#
# Each id picks its row from one matrix $E$ of $V$ rows, multiplied by $\sqrt{d_{\text{model}}}$. The row says which
# token it is, but not where it stands, so a vector that depends on the position alone is added (chapters 3.4 and
# 3.5). By hand:

# %%
from torch.testing import assert_close
from annotated_transformer import positional_encoding

E = model.embedding.weight
by_hand = E[batch.source] * D**0.5 + positional_encoding(S, D)
embedded = model.embed(batch.source)

assert E.shape == (V, D) and embedded.shape == (B, S, D)
assert_close(by_hand, embedded)
print("ids", tuple(batch.source.shape))
print("vectors", tuple(embedded.shape))

# %% [markdown]
# ### The encoder: vectors to memory
#
# The encoder lets every source token look at all others, layer after layer, and gives one vector for each again. The
# decoder will consult these vectors at every word it writes; they are called the **memory**. A token's vector now
# depends on its sentence. It must not depend on the padding, which is only there for the rectangle: a **mask** hides
# it. So *I am tired.* has the same memory in our batch as alone.

# %%
memory = model.encode(batch.source)
alone = make_batch([ids[0]]).source
n = alone.size(1)

assert memory.shape == (B, S, D)
assert_close(memory[1:, :n], model.encode(alone))
print("memory", tuple(memory.shape))
print("the second sentence fills", n, "of its", S, "places")

# %% [markdown]
# (section-decoder)=
# ### The decoder: blind to what comes
#
# The decoder reads `target_in` and the memory, and gives one vector for each target position. All positions are
# computed at once, yet position $t$ may only use what stands at positions up to $t$, or it would see the token it is
# asked for. A second mask, the causal one, sees to that. Replace the end of the target by nonsense, and the beginning
# does not notice.

# %%
mask = model.source_mask(batch.source)
decoded = model.decode(batch.target_in, memory, mask)
nonsense = batch.target_in.clone()
nonsense[:, 6:] = 99

assert decoded.shape == (B, T, D)
after = model.decode(nonsense, memory, mask)
assert_close(decoded[:, :6], after[:, :6])
assert not torch.allclose(decoded[:, 6:], after[:, 6:])
print("decoder's output", tuple(decoded.shape))
print("positions 0 to 5 are the same")

# %% [markdown]
# ### Logits: a score for every token
#
# The same matrix $E$ that turned tokens into vectors compares each output vector with every token's row: $x E^\top$
# gives $V$ scores, the **logits**. Their softmax is the model's distribution of the next token.

# %%
logits = model(batch.source, batch.target_in)
p = logits.softmax(dim=-1)

assert logits.shape == (B, T, V)
assert_close(logits, decoded @ E.T)
assert_close(p.sum(dim=-1), torch.ones(B, T))
print("logits", tuple(logits.shape))

# %% [markdown]
# One distribution for each next token is all there is to a translation model. The probability of a whole sentence
# $y$, given the source $x$, is the product over its tokens, each given those before it:
#
# $$ P(y \mid x) = \prod_{t=1}^{T} P(y_t \mid y_1, \dots, y_{t-1}, x) $$ (factorisation)
#
# The last token, $y_T$, is eos: a sentence that will not end has no probability. Because of the causal mask, one
# pass gives all $T$ factors. Compute them once more the slow way, feeding one token after the other through `step`,
# as a translator must who does not know the target yet:

# %%
y_in, y_out = batch.target_in[0], batch.target_out[0]
factors = p[0, range(T), y_out]  # all from one pass

with torch.no_grad():
    state = model.start(batch.source[:1])
    steps = [model.step(token.view(1, 1), state) for token in y_in]
slowly = torch.cat(steps, dim=1).softmax(dim=-1)[0, range(T), y_out]

assert_close(factors, slowly)
print(f"log P(y | x) = {factors.log().sum():.4f} nats")
print(f"a token: {factors.log().mean():.4f} nats")

# %% [markdown]
# A model that spread its trust evenly would give every token $1 / V$, that is $\ln 600 = 6.40$ nats. This untrained one
# does worse, because it has an opinion: its output vectors still resemble its input vectors, $E$ is what both are
# compared with, and so it bets on the token that it has read last.

# %%
real = batch.target_out != PAD
repeats = (p.argmax(dim=-1) == batch.target_in)[real]
print(f"it would repeat {repeats.sum()} of {batch.n_tokens} tokens")
assert repeats.float().mean() > 0.5

# %% [markdown]
# ## 1.5 The model learns
#
# ### Loss
#
# Training makes the target sentences probable. The **loss** of a batch is the sum, over its real target tokens, of
# $-\ln P$ of the right token, in nats (natural logarithms). The paper asks for a little less: the right token is to
# get 0.9, and the remaining 0.1 is spread over the vocabulary (*label smoothing*, section 5.4). The function returns
# both: `loss`, with the smoothing, which is minimised, and `nll`, without, which is measured.

# %%
from annotated_transformer import label_smoothed_cross_entropy

loss, nll = label_smoothed_cross_entropy(
    logits, batch.target_out, eps_ls=0.1, pad_id=PAD)
by_torch = nn.functional.cross_entropy(
    logits.flatten(0, 1), batch.target_out.flatten(),
    label_smoothing=0.1, ignore_index=PAD, reduction="sum")
by_hand = -p[real, batch.target_out[real]].log().sum()

assert loss.shape == nll.shape == ()
assert_close(loss, by_torch)
assert_close(nll, by_hand)
print(f"loss {loss / batch.n_tokens:.4f} nats a token")
print(f"nll  {nll / batch.n_tokens:.4f} nats a token")

# %% [markdown]
# ### One update
#
# The gradient of the loss says for each weight in which direction the loss falls. Adam (section 5.3) turns it into a
# step, whose size is the **learning rate**. The paper's rate is not constant: it rises in a straight line for
# `warmup_steps` updates, then falls with the inverse square root of the number of updates. It is set anew before
# every step, and the first step is step 1.

# %%
from annotated_transformer import TrainConfig, make_adam, noam_learning_rate

settings = TrainConfig(
    train_steps=160, max_tokens=512, warmup_steps=40, lr_factor=0.2,
    log_every=1, validate_every=160, checkpoint_every=10)

def rate_of(step):
    return noam_learning_rate(step, D, warmup_steps=40, factor=0.2)

# %% [markdown]
# Of these settings more below. Now the first step, and by how much it moves the numbers in $E$:

# %%
optimizer = make_adam(model, settings)
rate = optimizer.param_groups[0]["lr"] = rate_of(1)
before = E.detach().clone()
(loss / batch.n_tokens).backward()
optimizer.step()
change = (E.detach() - before).abs()
print(f"rate           {rate:.3e}")
print(f"largest change {change.max():.3e}")
print(f"median change  {change.median():.3e}")

# %% [markdown]
# The numbers in $E$ have all moved, and by the same amount. That is Adam's first step: it divides the gradient by a
# running estimate of its size, and after one step that estimate *is* its size, so what remains is a sign times the
# rate (a little less where the gradient is as small as Adam's $\epsilon = 10^{-9}$). (Every row moves, also the rows
# of tokens that are not in the batch: the softmax compares with all of them.) On these two sentences the loss has
# become smaller:

# %%
assert change.max() < 1.01 * rate
assert change.quantile(0.01) > 0.99 * rate

logits = model(batch.source, batch.target_in)
less, _ = label_smoothed_cross_entropy(logits, batch.target_out)
assert less < loss
print(f"before {loss / batch.n_tokens:.4f} nats a token")
print(f"after  {less / batch.n_tokens:.4f} nats a token")

# %% [markdown]
# ### Some dozens of updates
#
# `train` does this again and again: batches, loss, gradient, rate, Adam. It starts a fresh model, trains it for 160
# steps on the 42 pairs and writes a directory with all that is needed to translate, or to go on. It also measures
# itself on five sentences that are not among the 42, though all their English words are.
#
# Two settings are ours. For so few steps the warm-up is 40 instead of 4000; the formula then peaks at
# $(128 \cdot 40)^{-0.5} = 0.014$, at which this model learns nothing (try it), so `lr_factor` takes a fifth of that.

# %%
unseen = """My brother has bought a red chair. | Mein Bruder hat einen roten Stuhl gekauft.
My sister has lost her key. | Meine Schwester hat ihren Schlüssel verloren.
The small dog sees the bird. | Der kleine Hund sieht den Vogel.
The soup is very cold. | Die Suppe ist sehr kalt.
We missed the last train. | Wir haben den letzten Zug verpasst."""
unseen_pairs = [tuple(x.split(" | ")) for x in unseen.splitlines()]

def words(pairs):
    return {w.strip(".?") for x, _ in pairs for w in x.split()}

assert words(unseen_pairs) <= words(pairs)
assert not set(unseen_pairs) & set(pairs)

# %%
import tempfile
from pathlib import Path
from annotated_transformer import train

runs = tempfile.TemporaryDirectory()
out = Path(runs.name) / "forty-two"
train(config, settings, tokenizer, pairs, unseen_pairs, out,
      progress=False)

for path in sorted(out.iterdir()):
    print(path.name)
assert len(list((out / "checkpoints").iterdir())) == 5

# %% [markdown]
# The log holds a line for each step. Two curves from it, beside two lines that were known before the training: the
# rate that the formula gives, and the smallest loss there can be. The floor is not zero. Whoever is asked for 0.9 on
# one token and the rest on all 600 cannot do better than answer with exactly that distribution, whose entropy is 0.96
# nats.

# %%
import json
import math

lines = (out / "log.jsonl").read_text().splitlines()
log = [json.loads(line) for line in lines]
steps = [record for record in log if "loss" in record]
right, wrong = 0.9 + 0.1 / V, 0.1 / V
floor = -right * math.log(right) - (V - 1) * wrong * math.log(wrong)

print(f"floor of the loss: {floor:.4f} nats a token")
print(f"nll at that floor: {-math.log(right):.4f} nats a token")
assert floor < steps[-1]["loss"] < floor + 0.3
for record in steps:
    assert record["rate"] == rate_of(record["step"])

# %% mystnb={"image": {"alt": "Two curves over 160 steps. The loss falls from about 9 nats a token until about step 100 and then stays flat, close above a dashed line at 0.96. The learning rate rises in a straight line to its peak at step 40 and then falls ever more slowly."}}
figure, axes = plt.subplots(
    2, 1, figsize=(5, 4), sharex=True, dpi=90, layout="constrained")
number = range(1, 161)
axes[0].plot(number, [each["loss"] for each in steps], color="#0072B2")
axes[1].plot(number, [each["rate"] for each in steps], color="#009E73")
axes[0].axhline(floor, color="#D55E00", linestyle="--",
                label="the smallest possible")
axes[0].set(ylabel="loss (nats a token)", ylim=(0, None))
axes[0].legend(frameon=False)
axes[1].set(xlabel="step", ylabel="learning rate", ylim=(0, None))
plt.show()

# %% [markdown]
# ### Checkpoints to one
#
# The last updates jump around the minimum, each batch pulling its own way. The paper translates with the *average*
# of the last checkpoints, weight by weight: five for the base models, twenty for the big ones (section 6.1). We take
# five. `average_checkpoints` writes the average to a directory of the same form.

# %%
from annotated_transformer import average_checkpoints, checkpoint, load_model

averaged = average_checkpoints(out, last=5)
model, tokenizer = load_model(averaged)

paths = checkpoint.step_checkpoints(out)
five = [checkpoint.load_tensors(path)[0] for path in paths]
by_hand = sum(weights["embedding.weight"] for weights in five) / 5
assert_close(model.embedding.weight.detach(), by_hand)
print(*(path.stem for path in paths), averaged.name, sep="\n")

# %% [markdown]
# ## 1.6 The model translates
#
# ### One token at a time
#
# From here on the German sentence is no longer known. The encoder runs once. Then the decoder gets bos and gives a
# distribution; the most probable token is taken, printed, and fed back as the next input; and so on until it is eos.
# This is **greedy search**, in a few lines:

# %% tags=["nbval-rtol-0.1"]
source = batch.source[:1]
token, greedy = torch.tensor([[BOS]]), []
with torch.no_grad():
    state = model.start(source)
    while token.item() != EOS and len(greedy) < 40:
        p_V = model.step(token, state)[0, 0].softmax(dim=-1)
        token = p_V.argmax().view(1, 1)
        greedy.append(token.item())
        print(f"{tokenizer.pieces(greedy[-1:])[0]:12} {p_V.max():.2f}")

# %% [markdown]
# It is surer than the 0.9 that label smoothing asks for, because the model learned with dropout on and writes with it
# off. (In training mode its mean is 0.9; {ref}`exercise-sure`.) The package's function does the same for many
# sentences at once:

# %%
from annotated_transformer import greedy_search

assert greedy_search(model, source) == [greedy[:-1]]
assert greedy[:-1] == target_ids and greedy[-1] == EOS

# %% [markdown]
# ### Four at a time
#
# The best first token need not begin the best sentence. **Beam search** keeps the four best beginnings alive, and
# since every further token makes a sentence less probable, it compares finished ones of different length by
#
# $$ \frac{\log P(y \mid x)}{lp(|y|)}, \qquad lp(n) = \left(\frac{5 + n}{6}\right)^{0.6} $$
#
# which takes back part of that (section 6.1; $|y|$ counts eos).

# %%
from annotated_transformer import beam_search

[hypotheses] = beam_search(
    model, source, beam_size=4, alpha=0.6, n_best=4)
for tokens, score, log_p in hypotheses:
    lp = ((5 + len(tokens) + 1) / 6) ** 0.6
    assert math.isclose(score, log_p / lp)
scores = [hypothesis.score for hypothesis in hypotheses]
assert scores == sorted(scores, reverse=True)
assert hypotheses[0].tokens == target_ids
print(len(hypotheses), "hypotheses, best first")

# %% [markdown]
# ### Ids to text
#
# The last arrow but one leads back to a string. `Translator` is the whole way in one object, from a directory to
# text:

# %%
from annotated_transformer import Translator

translation = tokenizer.decode(hypotheses[0].tokens)
translator = Translator.from_checkpoint(averaged)

assert isinstance(translation, str) and translation == target_text
assert translator.translate([source_text]) == [translation]
print(source_text, translation, sep="\n")

# %% [markdown]
# There it is: the sentence has gone the whole way, and arrived.
#
# ### Text to a score
#
# **BLEU** {cite}`papineni2002bleu` compares many translations with reference translations: which share of their
# words, pairs, triples and fours of words occur in the reference, with a penalty for brevity; 0 is nothing, 100 is
# the reference itself. A score without its settings cannot be compared {cite}`post2018call`, so the package returns
# it with its *signature*.

# %%
from annotated_transformer import bleu

sources, references = map(list, zip(*pairs))
translations = translator.translate(sources)
learned = bleu(translations, references)
n_right = sum(t == r for t, r in zip(translations, references))

print(learned.signature)
print(n_right, "of 42 sentences are right to the letter")
assert learned.score > 95

# %% [markdown]
# Before you trust that score: the model was trained on these very sentences. Here are the five that it has not seen.

# %% tags=["nbval-ignore-output"]
sources, references = map(list, zip(*unseen_pairs))
translations = translator.translate(sources)
generalised = bleu(translations, references)

for triple in zip(sources, references, translations):
    print(*triple, sep="\n   ", end="\n\n")
print(f"BLEU {generalised.score:.0f} on unseen sentences,",
      f"{learned.score:.0f} on learned ones")
assert generalised.score < 75 < learned.score

# %% [markdown]
# It has learned 42 sentences by heart, and answers a new one with one that it knows, or nearly. Nothing in the curve of section
# 1.5 warned us: only sentences that were kept apart do, and the last line of the log had it, as `valid_nll` and
# `valid_bleu`. To learn translating rather than these translations, a model needs more sentences than it can
# memorise. [Section 6.1](6_1_translation.ipynb) gives it 36,000.

# %% tags=["nbval-ignore-output"]
nll_learned, nll_unseen = steps[-1]["nll"], log[-1]["valid_nll"]
print(f"nll {nll_unseen:.2f} on unseen sentences,",
      f"{nll_learned:.2f} on learned ones (nats a token)")
assert nll_learned < 0.3 < 1 < nll_unseen

# %% [markdown]
# ## 1.7 Break it
#
# Two arrows look like formalities. Take each away.
#
# ### Without positions
#
# *The cat sees the bird* and *The bird sees the cat* consist of the same tokens. Attention treats its input as a set:
# where the order does not reach the vectors, it reaches nothing.

# %%
cat, bird = make_batch([ids[15]]), make_batch([ids[16]])
assert sorted(cat.source[0].tolist()) == sorted(bird.source[0].tolist())
torch.manual_seed(1)

for kind in ("sinusoidal", "none"):
    each = Transformer(config.replace(positions=kind)).eval()
    one = each(cat.source, cat.target_in)
    other = each(bird.source, cat.target_in)
    print(f"positions={kind}: logits differ by up to",
          f"{(one - other).abs().max():.4f}")
    assert torch.allclose(one, other, atol=1e-5) == (kind == "none")

# %% [markdown]
# Without positions the two sentences are one to this model, whatever it learns: it must give both the same
# translation.
#
# ### Without the shift
#
# Now forget to shift the target: let the decoder read at position $t$ the very token that it is to predict there. The
# loop below is `train` in miniature, with that one mistake.

# %% tags=["nbval-rtol-0.5"]
torch.manual_seed(1)
careless = Transformer(config).train()
optimizer = make_adam(careless, settings)
everything = make_batch(ids)
source, target_in, target_out, n_tokens = everything
for step in range(1, 61):
    logits = careless(source, target_out)  # the mistake: not target_in
    loss, nll = label_smoothed_cross_entropy(logits, target_out)
    (loss / n_tokens).backward()
    optimizer.param_groups[0]["lr"] = rate_of(step)
    optimizer.step()
    optimizer.zero_grad()
print(f"nll after 60 steps: {nll / n_tokens:.2f} nats a token")
assert nll / n_tokens < 0.3 < 1 < steps[59]["nll"]

# %% [markdown]
# A splendid loss, at a step where the honest model's was still above 1. But what it has learned is to copy its input, and when nobody
# hands it the answer it has none:

# %% tags=["nbval-ignore-output"]
found = greedy_search(careless.eval(), source)
answers = [tokenizer.decode(tokens) for tokens in found]
n_right = sum(a == target for a, (_, target) in zip(answers, pairs))

print(repr(answers[2][:60]), "and", n_right, "of 42 right")
assert n_right <= 2

# %% [markdown]
# When your own model's loss falls fast and its translations are nonsense, look here first: at the shift, and at the
# causal mask, whose absence looks the same.

# %%
runs.cleanup()

# %% [markdown]
# ## 1.8 Where to find it
#
# | arrow | type | code | more in |
# |---|---|---|---|
# | corpus to pairs | `(str, str)` | `corpus.load` | [5.1](5_1_data_and_batching.ipynb) |
# | text to ids | `list[int]` | `Tokenizer.encode` | [5.1](5_1_data_and_batching.ipynb) |
# | ids to batch | `Batch` | `make_batch`, `token_batches` | [5.1](5_1_data_and_batching.ipynb) |
# | ids to vectors | (B, L, D) | `SharedEmbedding`, `positional_encoding` | [3.4](3_4_embeddings_and_softmax.ipynb), [3.5](3_5_positional_encoding.ipynb) |
# | vectors to memory | (B, S, D) | `Transformer.encode` | [3.2](3_2_attention.ipynb), [3.1](3_1_stacks.ipynb) |
# | memory to logits | (B, T, V) | `Transformer.decode`, `.logits` | [3.2](3_2_attention.ipynb), [3.1](3_1_stacks.ipynb) |
# | logits to loss | a sum in nats | `label_smoothed_cross_entropy` | [5.4](5_4_regularization.ipynb) |
# | loss to weights | rate(step) | `noam_learning_rate`, `make_adam`, `train` | [5.2](5_2_training.ipynb), [5.3](5_3_optimizer.ipynb) |
# | checkpoints to one | a directory | `average_checkpoints` | [6.1](6_1_translation.ipynb) |
# | text to ids out | `list[Hypothesis]` | `greedy_search`, `beam_search` | [6.1](6_1_translation.ipynb) |
# | ids to text | `str` | `Tokenizer.decode`, `Translator` | [6.1](6_1_translation.ipynb) |
# | text to score | a number and a signature | `bleu` | [6.1](6_1_translation.ipynb), [6.1, Table 2](6_1_results.ipynb) |
#
# The [map of the paper](paper_map.md) lists the test for each.

# %% [markdown]
# ## Exercises
#
# ```{exercise} Two recurrent layers
# :label: exercise-two-layers
#
# A second recurrent layer reads the states of the first, $g_t = f'(g_{t-1}, h_t)$. How long is the longest chain of
# matrix products for $n$ words? Decide before you count it with `longest_chain`.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
# Draw the states as a grid of two rows and $n$ columns. Where can an arrow lead?
# ```
#
# ```{solution} exercise-two-layers
# :class: dropdown
# $n + 1$. Every arrow goes right or up, and the longest path from the first word to the last state of the second layer
# takes all the steps to the right and one up. The two layers work side by side, one word apart: depth costs much less
# waiting than length.
# ```

# %% [markdown]
# ```{exercise} Weights, by hand
# :label: exercise-weights
#
# Derive the number of weights of this chapter's model (printed in 1.4) from $V = 600$, $N = 2$,
# $d_{\text{model}} = 128$, $d_{\text{ff}} = 256$. The attention projections have no bias, the feed-forward layers
# have, and every sub-layer has a LayerNorm with two vectors.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
# `for name, weight in model.named_parameters(): print(name, tuple(weight.shape))`. The embedding
# is there once, though it is used three times.
# ```
#
# ```{solution} exercise-weights
# :class: dropdown
# One attention: $4 \cdot 128^2 = 65{,}536$. One feed-forward: $2 \cdot 128 \cdot 256 + 256 + 128 = 65{,}920$. One
# LayerNorm: $256$. An encoder layer has one attention, one feed-forward and two norms: $131{,}968$; a decoder
# layer two, one and three: $197{,}760$. In all $600 \cdot 128 + 2 \cdot (131{,}968 + 197{,}760) = 736{,}256$.
# ```

# %% [markdown]
# ```{exercise} How sure it is
# :label: exercise-sure
#
# Run the greedy loop of 1.6 again after `model.train()`, twice. What changes, and why? Then compute the mean
# probability of the right token over all 42 pairs with dropout on and off.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
# `model(everything.source, everything.target_in).softmax(-1).gather(2, everything.target_out[:, :, None])`, and leave
# out the padding.
# ```
#
# ```{solution} exercise-sure
# :class: dropdown
# The numbers differ from run to run, since each draws which values are dropped. The mean is near 0.90 with dropout
# on, which is what the loss asked of the model in that state, and near 0.95 with it off. The noise made the model
# keep a margin.
# ```

# %% [markdown]
# ```{exercise} No end in sight
# :label: exercise-no-end
#
# Suppose `target_out` did not end in eos. Which line of this chapter would still pass, and what would the trained
# model do?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
# Follow greedy search's `while`. What makes it stop?
# ```
#
# ```{solution} exercise-no-end
# :class: dropdown
# The loss would be computed and fall as before. But eos would never be a right answer, so its probability would go to
# almost nothing, and every search would write on until its length limit (source length + 50). A sentence's end is
# something a model has to learn like any other token.
# ```

# %% [markdown]
# ```{exercise} The floor
# :label: exercise-floor
#
# Derive the two numbers that were printed before the curves: the smallest possible loss and the nll that goes with it.
# What are they for the paper's vocabulary of 37,000 tokens? Can a model have a smaller nll? A smaller loss?
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
# Cross-entropy $-\sum_v q_v \ln p_v$ is smallest at $p = q$, where it is the entropy of $q$. Write down $q$.
# ```
#
# ```{solution} exercise-floor
# :class: dropdown
# $q$ is $0.9 + 0.1/V$ at the right token and $0.1/V$ at the other $V - 1$. With $V = 600$: entropy $0.9632$ nats, nll
# $-\ln 0.90017 = 0.1052$. With $V = 37{,}000$: $1.3769$ and $0.1054$. A smaller nll is possible, at the price of a
# larger loss: a model that gives the right token 0.99 is *punished*. That is why the paper says that label smoothing
# hurts perplexity. A smaller loss is not possible.
# ```

# %% [markdown]
# ```{exercise} Leave out the mask
# :label: exercise-mask
#
# Encode the batch of 1.4 with a mask that is True everywhere,
# `model.encode(batch.source, torch.ones_like(mask))`. Which of the two sentences' memories change? Does the loss of a
# *training* run tell you about this mistake?
# ```
#
# ```{solution} exercise-mask
# :class: dropdown
# Only the shorter one's: *I am tired.* now looks at padding. Training would still succeed, since the model learns to
# live with it; but the translation of a sentence would depend on what it is batched with, and the loss does not show
# it. `assert_close(memory[1:, :n], model.encode(alone))` does. Tests of equality find what curves hide.
# ```

# %% [markdown]
# ```{exercise} The other way round
# :label: exercise-reverse
#
# Train the model from German to English with the same pairs. What has to change? Does the tokenizer?
# ```
#
# ```{solution} exercise-reverse
# :class: dropdown
# `pairs = [(target, source) for source, target in pairs]`, and a new `out`. The tokenizer stays: it has one vocabulary
# for both languages. Nothing else in the model knows which language is which.
# ```
