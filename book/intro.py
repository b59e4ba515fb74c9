# %% [markdown]
# # The Annotated Transformer, rebuilt
#
# Type an English sentence, and a Transformer says it in German. The model runs in this page, on your device, and what you
# type is sent nowhere:
#
# ```{translator} translate
# :text: The children are playing in the garden.
# ```
#
# In 2017 eight people published *Attention Is All You Need* {cite}`vaswani2017attention`, and the network of its
# Figure 1, the Transformer, has since become the engine of nearly every language model. This book takes the paper
# section by section. We explain each idea in plain words, write its equation in the paper's letters, run the code, and recompute every
# printed number that can be recomputed.
#
# The model above was trained from nothing, in a night on two cores of a server's CPU, by the code that these chapters
# explain. The same model in Python:

# %% tags=["hide-input"]
from annotated_transformer import Translator
from lab.explorer import explore_attention

translator = Translator.from_checkpoint("model")
sentences = ["I have bought a new umbrella.", "Where is the station?", "She didn't know what to do.",
             "Tom sold his car because it was old."]
for english, german in zip(sentences, translator.translate(sentences), strict=True):
    print(f"{english}\n    {german}")

# %% [markdown]
# It has six million parameters. The largest published models have a hundred thousand times as many, and work by the same
# rules. This is what it looks at while it translates the last sentence. Point at a word,
# or choose another layer and another head:

# %% tags=["hide-input"]
explore_attention(translator.model, translator.tokenizer, sentences[-1], kinds=["cross", "encoder"], layer=3)

# %% [markdown]
# You can also watch a Transformer learn. A smaller one begins with random numbers, in your browser, and soon spells words
# backwards, even words that it was never trained on:
#
# ```{translator} training
# ```
#
# ## Figure 1 is the map of this book
#
# Each numbered box is a chapter: on the site, click one. Or begin with [chapter 0](0_one_hour.ipynb), which walks through
# all of them in an hour.
#
# ![The Transformer as a map: the encoder on the left, the decoder on the right, their boxes numbered 1 to 13 as in the table below, equal boxes alike.](figures/architecture_map.svg)
#
# | box | chapter |
# |---|---|
# | 1, 8 tokens in | [5.1 Data and batching](5_1_data_and_batching.ipynb) |
# | 2, 11, 12 embedding, linear layer and softmax | [3.4 Embeddings and softmax](3_4_embeddings_and_softmax.ipynb) |
# | 3 positions | [3.5 Positional encoding](3_5_positional_encoding.ipynb) |
# | 4, 9, 10 attention | [3.2 Attention](3_2_attention.ipynb), [3.2.3 Masks](3_2_masks.ipynb) |
# | 5, 7 add & norm, the stacks | [3.1 Stacks and model](3_1_stacks.ipynb) |
# | 6 each position by itself | [3.3 Feed-forward networks](3_3_feed_forward.ipynb) |
# | 13 from probabilities to a translation | [6.1 Translation](6_1_translation.ipynb) |
#
# Around the figure are chapters on [why it was built](4_why_self_attention.ipynb), how it is
# [trained](5_2_training.ipynb) and what the paper [measured](6_1_results.ipynb).
#
# ## What you will have at the end
#
# - You can explain every box and every arrow of Figure 1, and compute each of them by hand on a small case.
# - You have trained a translator, averaged its checkpoints, searched with a beam and reported a score (BLEU) that others
#   can compare with theirs.
# - You know which of the paper's claims follow from arithmetic, which ones small experiments confirm, and which cannot be
#   settled on a laptop.
# - You keep the package, `annotated_transformer`: the complete, tested system behind the chapters, which trains on
#   your own pairs of sentences with one command.
#
# We assume that you read Python, that you have met matrices, derivatives and probabilities, and that you have perhaps
# trained a small network in PyTorch. The paper itself, fifteen pages, is a good companion:
# [arXiv:1706.03762](https://arxiv.org/abs/1706.03762). The [reading guide](reading_guide.md) follows it paragraph by
# paragraph.
#
# ## Four ways through it
#
# | time | what to read |
# |---|---|
# | an hour | [chapter 0](0_one_hour.ipynb): the whole Transformer with ten drawings, and its code in 80 lines |
# | two hours | chapter 0; then [3.2](3_2_attention.ipynb) as far as [*A mask hides keys*](at-mask), [3.2.3](3_2_masks.ipynb) as far as [*A leak that trains*](masks-leak), [where the work lies](section-why-whole) and [Table 1](section-why-desiderata) in 4, and the answers below |
# | a day | chapter 0, then [3.2](3_2_attention.ipynb), [3.5](3_5_positional_encoding.ipynb), [3.1](3_1_stacks.ipynb), [5.2](5_2_training.ipynb) and [6.1](6_1_translation.ipynb), and whichever exercises appeal to you |
# | a course | one chapter per session in the order of the contents, with its exercises as homework |
#
# Questions that are always asked have a measured answer each:
# [why a query, a key and a value](at-why-three), [why the square root](at-scale) and
# [why several heads](at-heads) in 3.2; [why positions are added](pe-why-added) in 3.5;
# [why layer norm and not batch norm](st-why-layer-norm) and [what each layer adds](st-layers-add) in 3.1;
# [what embeddings learn](emb-learned) in 3.4; and
# [where the tokenizer hurts](data-cuts) in 5.1.
#
# If you already know the Transformer, you may like [common mistakes](common_mistakes.ipynb), [errata](errata.ipynb),
# [what holds](claims.ipynb) and the exercises of [3.2](3_2_attention.ipynb). After chapter 3.2 the chapters 3.3 to 3.5
# can be read in any order; 3.1 puts them together. Letters and words are collected under [notation](notation.md).
#
# Every chapter ends with exercises, from "predict the shape" to "change the model and measure"; hints and solutions are
# folded. Where an exercise asks for a function, `check("3.2.1", my_attention)` judges yours and says what is
# wrong with it without giving the answer away.
#
# ## How to run it
#
# **On a laptop**, with Python 3.11 or newer and pip, from the repository's folder:
#
#     make book    # run every chapter, build these pages
#     make test    # test everything, the chapters too
#
# The first command makes an environment, fetches the sentences and trains. `make notebook` opens the chapters in JupyterLab, with
# solutions folded. Most chapters run in less than two minutes. Who teaches with the book gets a chapter without its solutions by
# `make student CHAPTER=book/3_2_attention.py`.
#
# **On Colab**, the rocket at the top of a chapter opens it there. The first cell fetches the book and installs the few
# packages that Colab lacks. [On a GPU](on_a_gpu.ipynb) says what makes training fast there.
#
# ## Credits
#
# The paper is by Ashish Vaswani, Noam Shazeer, Niki Parmar, Jakob Uszkoreit, Llion Jones, Aidan N. Gomez, Łukasz Kaiser
# and Illia Polosukhin; we quote it briefly, and re-compute its figures. The idea of a paper told as
# running code is that of *The Annotated Transformer* {cite}`rush2018annotated`, by Alexander Rush and, in later
# editions, Austin Huang and others; text and code here are new, under the MIT licence. The sentences that the model
# learned from are by the **Tatoeba contributors, tatoeba.org, CC BY 2.0 FR**, by way of manythings.org/anki
# {cite}`tatoeba`. All works cited are listed in the [references](references.md).
