# %% [markdown]
# # 7 A controlled corpus
#
# *The claims of the paper's Figures 3, 4 and 5 {cite}`vaswani2017attention`, measured in a language where we know what
# a head should look at.*
#
# In the [chapter before](7_attention_visualizations.ipynb) each figure was one sentence, and nobody could say where a
# head *should* look. Now we make a case where this is known for thousands of sentences, train a small model that solves
# it, and ask what is lost without each head. When you have read this chapter you can
#
# - build a corpus in which every sentence comes with its answer;
# - measure how much a head looks at the right word, and choose the head fairly;
# - test by removal whether the model uses what the head shows, and by a minimal pair what the head really does.

# %% tags=["remove-cell"]
import torch
from torch.testing import assert_close

from annotated_transformer import load_model, make_batch, record_attention
from lab.experiments.figures_3_to_5.controlled_corpus import HELD_OUT_NOUNS, THINGS, is_held_out, position, sentences
from lab.experiments.figures_3_to_5.controlled_words import PERSONS
from lab.experiments.figures_3_to_5.knock_out import mcnemar
from lab.experiments.result_file import read_result
from lab.display import show, use_style
from lab.pictures import attention as attention_pictures

use_style()

# %% [markdown]
# ## A language that comes with its answers
#
# A **controlled corpus** is made by rules. Ours is a grammar that writes English and German at the same time: ninety
# things (thirty of each German gender), ten persons, clauses with *it* and *its*, verbs whose particle is far away, and
# German clauses that end in their verb. For each sentence it says which noun the pronoun refers to, its **antecedent**,
# and which other noun could be mistaken for it, the **distractor**.

# %%
test, training = sentences("test"), sentences("train")

def word_of(sentence, role):
    """The English word with this role, or a dash."""
    where = position(sentence.english, role)
    return sentence.english[where].text if where >= 0 else "-"

for number in (2002, 3000, 1002):
    print(*test[number].texts, sep="\n")
    print("   ", *(f"{role}: {word_of(test[number], role)};"
                   for role in ("pronoun", "antecedent", "distractor")))

# %% mystnb={"image": {"alt": "A sentence pair: The cup did not fit into a red skirt because it was too wide, above its German translation. A blue arc leads from it to the antecedent cup, a dashed orange arc from it to the distractor skirt, a line from it down to the German sie, which agrees with Tasse."}, "figure": {"caption": "What we know of a sentence. To write *sie* (and not *er*, for the masculine *Rock*), a model must find out that *it* is the cup.", "name": "fig-controlled-sentence"}} tags=["hide-input"]
attention_pictures.controlled_sentence(test)

# %% [markdown]
# German must choose *er*, *sie* or *es* (and *sein* or *ihr* for *its*) by the gender of the antecedent. Our rules say
# which noun that is: the subject of the clause before, if it is a thing, else its object; a noun that only says where
# something is (*on a light pan*) is never meant. Where one thing does not fit into another, the adjective decides.
#
# We hold out two things. Fifteen nouns occur in no training sentence with a pronoun, so their gender can be learned
# from articles and adjectives only, and some pairs of clauses (the table below calls such a pair a *template*) occur in
# no training sentence with a pronoun either. In the test the distractor always takes another pronoun, so a model that
# picks the wrong noun gives itself away.

# %% tags=["hide-cell"]
with_pronoun = [sentence for sentence in training if sentence.gender]
assert not any(HELD_OUT_NOUNS & {word.text for word in sentence.english} for sentence in with_pronoun)
assert not {s.template for s in with_pronoun} & {s.template for s in test if is_held_out(s)[1]}
parts = [is_held_out(sentence) for sentence in test]
assert [parts.count(part) for part in ((False, False), (True, False), (False, True), (True, True))] == [1000] * 4
assert [sum(found == gender for _, found in THINGS.values()) for gender in "mfn"] == [30] * 3
assert (len(PERSONS), len(HELD_OUT_NOUNS)) == (10, 15)
vocabulary = {word.text for sentence in training for side in (sentence.english, sentence.german) for word in side}
assert 450 < len(vocabulary) < 550
print(f"{len(training):,} training sentences, {len(with_pronoun):,} with a pronoun; {len(test):,} in the test; {len(vocabulary)} words")

# %% [markdown]
# ## The book's model on this language
#
# The model of the last chapter learned from real sentences and has never seen ours. We give it the German translation
# up to the pronoun, let it choose among *er*, *sie* and *es*, and record where its encoder's *it* looks: at the
# antecedent, and at the distractor beside it.

# %% tags=["hide-cell"]
model, tokenizer = load_model("model")
N, h = model.config.N, model.config.h

def plain(words):
    return " ".join(word.text for word in words).replace(" ,", ",").replace(" .", ".")

def n_pieces(words):
    return len(tokenizer.encode(plain(words)))

def pieces_of(sentence, role):
    """Where the English word with this role stands among the tokens."""
    where = position(sentence.english, role)
    return slice(n_pieces(sentence.english[:where]), n_pieces(sentence.english[:where + 1]))

# %% tags=["hide-cell"]
asked = [s for s in test[:600] if word_of(s, "distractor") != "-" and word_of(s, "pronoun") == "it"
         and s.german[position(s.german, "pronoun")].text in ("er", "sie", "es")][:160]
starts = [s.german[:position(s.german, "pronoun")] for s in asked]
batch = make_batch([(tokenizer.encode(plain(s.english)), tokenizer.encode(plain(start))) for s, start in zip(asked, starts)])
with record_attention(model) as weights, torch.inference_mode():
    logits = model(batch.source, batch.target_in)
choices = torch.tensor([tokenizer.encode(word)[0] for word in ("er", "sie", "es")])
rows = torch.tensor([n_pieces(start) for start in starts])
chosen = logits[torch.arange(len(asked)), rows][:, choices].argmax(-1)
right = torch.tensor(["mfn".index(s.gender) for s in asked]) == chosen
A_it = torch.stack([weights[f"encoder.layers.{i}.self_attention"] for i in range(N)], 1)
looks = {role: torch.stack([A[:, :, pieces_of(s, "pronoun"), pieces_of(s, role)].sum(-1).mean(-1)
                            for A, s in zip(A_it, asked)]).mean(0) for role in ("antecedent", "distractor")}

# %% tags=["nbval-ignore-output"]
at = divmod(looks["antecedent"].argmax().item(), h)
print(f"book/model: {right.double().mean():.0%} of {len(asked)} pronouns "
      "right, where a guess among three has 33%")
print(f"layer {at[0] + 1}, head {at[1] + 1} looks most at the antecedent: "
      f"{looks['antecedent'][at]:.2f}; "
      f"at the distractor: {looks['distractor'][at]:.2f}")
error = 1.96 * (right.double().var() / len(asked)).sqrt()
always_es = sum(s.gender == "n" for s in asked) / len(asked)
low, high = right.double().mean() - error, right.double().mean() + error
print(f"always es: {always_es:.0%}; 95 % interval: {low:.0%} to {high:.0%}")
assert looks["antecedent"][at] > looks["antecedent"].median()
assert low < always_es < high

# %% mystnb={"image": {"alt": "Scatter plot of the twelve encoder heads of the book's model: mean weight of it on the distractor across, on the antecedent up, with the diagonal where both are equal."}, "figure": {"caption": "The encoder heads of the book's model, mean over 160 sentences: how much *it* gives to the antecedent (up) and to the distractor (across). A head that knows what *it* means would lie far above the dashed diagonal.", "name": "fig-controlled-book-model"}} tags=["hide-input"]
top = attention_pictures.controlled_book_model(looks)
assert top > 0

# %% [markdown]
# The model is no better than always writing *es*: the interval includes that share. The head that looks most at the
# antecedent gives nearly as much, or more, to the noun that it should ignore. Our odd sentences may be unfair to this
# model, so let us train one on them.

# %% [markdown]
# ## A model that has learned it
#
# A small Transformer of the same design ($N = 2$, $h = 4$, $d_{\text{model}} = 64$) learns the corpus in some minutes
# on one core. Attention differs from one training run to the next, so we train three. `python -m
# lab.experiments.figures_3_to_5` does this, and writes its file.

# %%
measured = read_result("results/figures_3_to_5.json")
*runs, together = measured["records"]
print(f"{'pronouns right, mean of 3 seeds':34s} forced  greedy  sentences")
for part, found in together["accuracy"].items():
    what = f"held out: {part}" if part != "seen" else "nothing held out"
    print(f"{what:34s} {found['forced']:.1%}   {found['greedy']:.1%}   "
          f"{found['sentences']:,.0f}")
    assert found["forced"] >= 0.95 and found["greedy"] >= 0.95

# %% [markdown]
# *Forced* is the choice after the right German words; *greedy* is the word at that place in the model's own
# translation. All four parts are above 99 percent, new nouns in new pairs of clauses included. So the model knows what
# *it* refers to in this language, and we can ask where it looks.

# %% [markdown]
# ## How much do the heads look at the right word?
#
# A **link** asks a head one thing: how much of the weight of query $i$ lies on the keys $J$? Over the $n$ links of all
# sentences, a head's **share** is
#
# $$
# s = \frac{1}{n} \sum_{k=1}^{n} \sum_{j \in J_k} A_{i_k j}
# $$ (viz-share)
#
# For each link we choose the head with the largest share on the *validation* sentences and report its share on the
# *test*, so that the selection does not bias the result. Grey marks are two controls: a head that looks everywhere
# alike, and the best head of the same model before its first step, found in the same way.

# %% mystnb={"image": {"alt": "Dot chart with a row for each of ten links between words: the shares of the best heads in three trained models as coloured marks from 0 to 1, and the two controls as grey marks, all below 0.3."}, "figure": {"caption": "The share of the best head for ten links, in three models. *encoder*, *decoder* and *cross* are the three attentions; in the last two the query is the row that predicts the German word.", "name": "fig-controlled-shares"}} tags=["hide-input", "row-F5"]
LINKS, shares = attention_pictures.controlled_shares(together)
assert max(shares[8]["seeds"]) > 0.9 and min(shares[8]["seeds"]) < 0.2 and min(shares[9]["seeds"]) > 0.5

# %% [markdown]
# - **Figure 4's link, from a pronoun to its antecedent**, is there: in all three models one encoder head and one
#   decoder head give most of their weight to the antecedent, and beside a distractor more to the right noun than to the
#   other (0.64 and 0.25 in the encoder, 0.66 and 0.25 in the decoder, means of three; in the second model's encoder the
#   ratio is only 1.7). The encoder-decoder attention looks at *it* instead: by then the encoder can have mixed into
#   that vector what it found.
# - **Figure 3's link, from a verb to its distant particle**, is there too. *put ... away* is *räumte ... weg* and
#   *put ... back* is *stellte ... zurück*, so to choose the verb, a model must see the particle. The surest link of all
#   is that of the last verb: to end a German clause, the decoder looks far to the left, at the English verb.
# - **Figure 5's structure** shows best in the cross attention, where the decoder looks ahead to the noun to choose
#   *der*, *die* or *das*. In the encoder the three models differ: one has a sharp head for articles, and another has
#   none.

# %% tags=["hide-cell", "row-F3", "row-F4"]
for name in LINKS[:2]:
    found = together["shares"][name]
    assert min(found["seeds"]) > 2 * found["even"] and found["weight beside a rival"] > 2 * found["rival"]
assert max(together["shares"]["pronoun to antecedent, cross"]["seeds"]) < together["shares"]["pronoun to antecedent, cross"]["even"]
assert all(together["shares"][name]["weight"] > together["shares"][name]["even"] for name in LINKS[3:])
assert min(together["shares"]["last verb to verb, cross"]["seeds"]) > 0.9
assert min(together["shares"]["pronoun to pronoun, cross"]["seeds"]) > 0.5
assert min(found["forced"] for found in together["accuracy"].values()) > 0.99
assert min(found["greedy"] for found in together["accuracy"].values()) > 0.99
assert max(sum(found["untrained"]) / 3 for found in shares) < 0.3 > max(found["even"] for found in shares)
model_of = measured["model"]
assert (model_of["N"], model_of["h"], model_of["d_model"], len(runs)) == (2, 4, 64, 3)

# %% [markdown]
# ## Which heads does the model need?
#
# A large share is a hypothesis: the head finds the antecedent, and the model uses what it finds. So we remove the best
# head and count the right pronouns again (for the particle, the right German verbs). We count the other words too, and
# the same answers with another head of that attention removed: if all suffer alike, the head does something else. The
# test for right and wrong answers to the same questions is **McNemar's**: only answers that changed count, and if the
# head did not matter, each of them would be as likely to change for the better as for the worse. *p* is the probability
# of so uneven a split, or a more uneven one, if a coin had decided.

# %%
show(mcnemar)

# %%
JUDGED = ("pronoun to antecedent, encoder", "pronoun to antecedent, decoder",
          "verb to particle, encoder", "verb to particle, cross")
removed = {link: [run["ablation"][f"best: {link}"]
                  | {"share": run["shares"][link]["weight"]} for run in runs]
           for link in JUDGED}

def p_value(p):
    return "p < 0.001" if p < 0.001 else f"p = {p:.2f}"

print(f"{'the best head, removed':31s} seed  share  right before   after")
for link, rows in removed.items():
    for seed, row in enumerate(rows, 1):
        print(f"{link:31s} {seed:4d}   {row['share']:.2f}       "
              f"{row['before']:6.1%}  {row['after']:6.1%}  {p_value(row['p'])}")

# %% mystnb={"image": {"alt": "Dumbbell chart with twelve rows, four links in three models. For each, a hollow mark for the answers right with all heads, near 100 percent, joined to a filled mark for those right without the best head, and a cross for those right without another head. In six rows the filled mark lies far to the left, between 64 and 81 percent; the crosses stay above 95."}, "figure": {"caption": "Right answers with all heads (hollow), without the best head for a link (filled), and without another head of the same attention (cross, a mean).", "name": "fig-controlled-removed"}} tags=["hide-input", "row-F3"]
attention_pictures.controlled_removed(removed)
assert sum(row["after"] < 0.82 for rows in removed.values() for row in rows) == 6

# %% tags=["hide-cell", "row-F4"]
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
assert min(row["other heads, mean"] for rows in removed.values() for row in rows) > 0.95

# %% [markdown]
# **Figure 4's head is needed.** In every seed, one encoder head gives more than 0.7 of the weight of *it* to the
# antecedent; without this head more than a fifth of all pronouns go wrong, while 99.9 percent of the other words stay
# right.
#
# **Figure 3's job is done in different places by different models.** The first model fetches the particle in the
# encoder, the other two in the encoder-decoder attention. (In the second model that head is not only for verbs: 7
# percent of the other words go wrong too.)
#
# **Some heads with a large share can be removed alone without consequence.** In the first model a decoder head gives
# more than half of its weight to the antecedent at the very place where the pronoun is predicted; in the second, an
# encoder head gives more than half of the verb's to its particle. We remove them, and all answers but a few stay right.
# The converse happens too: in the second model a head with next to no
# weight on the antecedent is needed for one pronoun in six.

# %% [markdown]
# ## A minimal pair shows what the head does
#
# Is the encoder's head one for *anaphora*, then? Take two sentences with held-out nouns in a held-out pair of clauses.
# What is too *wide* does not go in; what is too *narrow* does not let it in. One word changes, and *it* is the other
# noun.

# %% mystnb={"image": {"alt": "Two heat maps on white side by side, for the sentences about a wheel that does not fit into a bucket because it is too wide, or too narrow. Eight rows for the encoder's heads, a column for each word; wheel and bucket are marked. In both maps row 2.2 has all its weight on wheel; row 1.1 has it on wide in the first map and on bucket in the second."}, "figure": {"caption": "Where *it* looks in the first seed's model, all heads of the encoder (layer.head). The two sentences differ in one word.", "name": "fig-controlled-wheel"}} tags=["hide-input", "row-F4"]
attention_pictures.controlled_wheel(runs)
wide, narrow = (found["it"][0][0] for found in runs[0]["example"].values())  # head 1.1
assert wide[12] > 0.9 and narrow[7] > 0.9

# %%
for run in runs:
    layer, head = run["shares"]["pronoun to antecedent, encoder"]["best"]
    for found in run["example"].values():
        A_row = found["it"][layer][head]
        print(f"seed {run['seed']}, head {layer + 1}.{head + 1}: "
              f"wheel {A_row[1]:.2f}, bucket {A_row[7]:.2f};  "
              f"{found['translation'].split(' , ')[1]}")
        assert A_row[1] > 0.99 and A_row[7] < 0.01
    outputs = [found["translation"] for found in run["example"].values()]
    assert [output.split()[9] for output in outputs] == ["es", "er"]

# %% [markdown]
# Both translations are right, since *Rad* (wheel) is neuter, *es*, and *Eimer* (bucket) is masculine, *er*. Yet in all
# three models the head stays on the wheel, also where *it* is the bucket. It looks for the *first thing of the
# sentence*, which is the antecedent in about three test sentences of four, and a mean over all sentences hides the
# difference. So we split the sentences, and choose the best head for each half separately.

# %%
print("the antecedent is the first or second thing: "
      "best head of the encoder, removed")
for place in ("first", "second"):
    for run in runs:
        found = run["places"][place]
        layer, head = found["best"]
        print(f"{place:6s}  seed {run['seed']}, head {layer + 1}.{head + 1}: "
              f"{found['weight beside a rival']:.2f} on its noun;  "
              f"right {found['before']:6.1%} -> {found['after']:6.1%}  "
              f"{p_value(found['p'])}")

# %% tags=["hide-cell"]
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
# The head implements a default: the first noun. It gives at least 97 percent of the weight of *it* to the first thing
# where that is the antecedent, and less than 0.1 percent to the antecedent where that is the second; without it three
# pronouns in ten or more go wrong where that was the answer, while at least 98 percent stay right in the other
# sentences. For the other quarter no head is as sharp, and only in the first model does removing the best one do harm.
# How the other two models find the second noun remains open ({ref}`ex-viz-second`).
#
# Can other heads replace the one that implements the default? We remove it together with the decoder's best head for
# the antecedent.

# %%
both = [run["ablation"]["encoder's and decoder's best"]["pronoun"]
        for run in runs]
encoder, decoder = ([row["after"] for row in removed[link]]
                    for link in JUDGED[:2])
for name, scores in (("the encoder's best", encoder),
                     ("the decoder's best", decoder), ("both", both)):
    print(f"pronouns right without {name:19s}",
          " ".join(f"{score:.1%}" for score in scores))
assert all(score < alone - 0.05 for score, alone in zip(both, encoder))

# %% tags=["hide-cell"]
for k in range(3):  # one, two, three encoder heads that look most at the antecedent, beside four draws of as many others
    rows = [run["ablation"]["more: pronoun to antecedent, encoder"][k] for run in runs]
    after, others = (sum(row[key] for row in rows) / len(rows) for key in ("after", "others, mean"))
    print(f"{rows[0]['heads']} encoder heads removed: {after:.1%} right; {others:.1%} without as many others")
    assert after < 0.75 and others > 0.9

# %% [markdown]
# Removed alone, the decoder's head costs 0, 2.5 and 7 points. After the encoder's it costs another 7, 29 and 29, since
# it can take over part of that work, and removing one head at a time hides this.

# %% [markdown]
# ## What this shows, and where it ends
#
# In this setting heads do link a verb with the distant word that completes it
# (Figure 3), and *it* with a noun that is mostly its antecedent (Figure 4); a head that follows an article to its noun
# in the encoder (Figure 5) is sharp in one of three models. The caption's caution is right as well: "apparently
# involved in anaphora resolution" is what one sees, and what the head does is less.
#
# How often such heads occur in models of natural language is another question. Our grammar has some five hundred words
# and one way to say a thing, its first things are easy to find, and our encoder has 8 heads where the paper's has 48.
#
# :::{dropdown} Where this is
# Code: `controlled_corpus.py`, `attention_shares.py` and `knock_out.py` in `book/lab/experiments/figures_3_to_5/`;
# `python -m lab.experiments.figures_3_to_5` runs it again, with `--small` in seconds. Tests:
# `tests/lab/experiments/test_controlled_corpus.py` (whose judge knows German from lists of its own),
# `test_attention_shares.py` and `test_knock_out.py`.
# :::

# %% [markdown]
# ## Exercises

# %% [markdown] tags=["exercise"]
# ```{exercise} Lost and won
# :label: ex-viz-mcnemar
#
# A head is removed. Of 1,000 pronouns, 12 that were right are wrong now, and 2 that were wrong are right. Is that more
# than chance? Compute McNemar's $p$ by hand. How does the answer change if 105 are lost and 95 won, which is the same
# difference of 10?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# Toss a coin for each of the 14 answers that changed. How likely are 2 heads or fewer, or 12 or more?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-viz-mcnemar
# :class: dropdown
#
# $2 \cdot (1 + 14 + 91) / 2^{14} = 212 / 16384 = 0.013$: hardly chance. With 105 and 95, $p$ is about one half: among
# 200 throws, a difference of 10 is common. The change in accuracy is the same, so accuracies alone cannot tell.
# ```

# %% [markdown] tags=["exercise"]
# ```{exercise} The other quarter
# :label: ex-viz-second
#
# Where the antecedent is the second thing, the models are right too. Plan an experiment that shows where they get it
# from. What is the control?
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# *wide* and *narrow* differ in one word. What did the [chapter before](7_attention_visualizations.ipynb) exchange?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-viz-second
# :class: dropdown
#
# Patch one encoder vector at a time from *narrow* into *wide* and see which carries *er* over; then remove the heads
# that write into it, in pairs. The control patches a word on which nothing depends. The answer is open.
# ```

# %% tags=["hide-cell", "solution"]
def changed(lost, won, n=1000):
    """Answers before and after, with so many lost and won."""
    before, after = torch.ones(n, dtype=torch.bool), torch.ones(n, dtype=torch.bool)
    before[:won], after[won:won + lost] = False, False
    return before, after

assert_close(mcnemar(*changed(12, 2)), 2 * (1 + 14 + 91) / 2**14)
assert 0.4 < mcnemar(*changed(105, 95)) < 0.6
print(f"{mcnemar(*changed(12, 2)):.4f} {mcnemar(*changed(105, 95)):.4f}")
