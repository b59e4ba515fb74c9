"""The head explorer shows the weights that the model used, whatever the tokens;
a keyboard reaches all of it."""

import json
import re

import pytest
import torch

from annotated_transformer.decoding.search import beam_search
from annotated_transformer.errors import ConfigError
from annotated_transformer.extras.attention_views.record import record_attention
from annotated_transformer.model.transformer import Transformer
from exported_page import IN_CHROMIUM
from html_page import HtmlPage
from lab.explorer import (
    AttentionExplorer,
    AttentionMaps,
    explore_attention,
)
from tools.browser import open_page
from toys import small_model, toy_tokenizer

N, H, L, S = 2, 3, 4, 5
NAMES = [
    "encoder.layers.{}.self_attention",
    "decoder.layers.{}.self_attention",
    "decoder.layers.{}.cross_attention",
]


def toy_model(**changes):
    return small_model(vocab_size=280, dtype=torch.float32, **changes)


def random_maps(name="Attention", queries=L, keys=S, n=N, h=H):
    scores = torch.randn(n, h, queries, keys, generator=torch.Generator().manual_seed(queries))
    q, k = [f"▁q{i}" for i in range(queries)], [f"▁k{i}" for i in range(keys)]
    return AttentionMaps(name, (2 * scores).softmax(-1), q, k)


def page(explorer):
    return HtmlPage(explorer._repr_html_())


def data_of(page):
    """What its script reads."""
    return json.loads(page.texts_of("script")[0])


# What is shown


def test_it_shows_what_the_model_used():
    model, tokenizer = toy_model(), toy_tokenizer()
    source, target = tokenizer.encode("tea bad cab"), tokenizer.encode("deaf ebb")
    with record_attention(model) as recorded, torch.inference_mode():
        model(torch.tensor([[*source, 2]]), torch.tensor([[1, *target]]))
    explorer = explore_attention(model, tokenizer, "tea bad cab", "deaf ebb")
    for maps, shown, name in zip(
        explorer.maps, data_of(page(explorer))["weights"], NAMES, strict=True
    ):
        used = torch.cat([recorded[name.format(i)] for i in range(2)])
        assert torch.equal(maps.weights, used)
        torch.testing.assert_close(torch.tensor(shown), used, rtol=0, atol=5.1e-4)


def test_a_decoders_query_has_the_token_it_reads_and_the_one_it_predicts():
    tokenizer = toy_tokenizer()
    encoder, decoder, cross = explore_attention(toy_model(), tokenizer, "tea bad", "cab").maps
    source, target = (tokenizer.pieces(tokenizer.encode(text)) for text in ("tea bad", "cab"))
    assert encoder.queries == encoder.keys == [*source, "</s>"]
    assert encoder.predicts == ()
    for maps, keys in ((decoder, ["<s>", *target]), (cross, [*source, "</s>"])):
        assert (maps.queries, maps.predicts) == (["<s>", *target], [*target, "</s>"])
        assert maps.keys == keys


@pytest.mark.slow
def test_without_a_target_it_shows_the_models_own_translation():
    model, tokenizer = toy_model(), toy_tokenizer()
    output = beam_search(model, torch.tensor([[*tokenizer.encode("tea"), 2]]))[0][0].tokens
    explorer = explore_attention(model, tokenizer, "tea")
    assert explorer.maps[2].predicts == [*tokenizer.pieces(output), "</s>"]
    assert explorer.title == f"tea → {tokenizer.decode(output)}"


def test_the_encoder_alone_asks_the_decoder_nothing(monkeypatch):
    monkeypatch.setattr(Transformer, "decode", None)
    explorer = explore_attention(toy_model(), toy_tokenizer(), "tea bad", kinds=["encoder"])
    assert [maps.name for maps in explorer.maps] == ["Encoder self-attention"]
    assert explorer.title == "tea bad"


@pytest.mark.parametrize("training", [True, False])
def test_dropout_is_off_while_it_looks_and_the_mode_stays(training):
    model = toy_model(p_drop=0.5).train(training)
    one, two = (explore_attention(model, toy_tokenizer(), "tea", "bad") for _ in range(2))
    assert torch.equal(one.maps[2].weights, two.maps[2].weights)
    assert model.training is training


def test_the_kinds_and_the_first_head_can_be_chosen():
    start = ["cross", "encoder"], 2, 1, 2
    explorer = explore_attention(toy_model(), toy_tokenizer(), "tea", "bad", *start)
    shown = page(explorer)
    names = [maps["name"] for maps in data_of(shown)["maps"]]
    assert names == ["Encoder-decoder attention", "Encoder self-attention"]
    assert (data_of(shown)["layer"], data_of(shown)["head"], data_of(shown)["query"]) == (1, 0, 1)
    first_row = [f"{weight:.2f}" for weight in explorer.maps[0].weights[1, 0, 0].tolist()]
    width = len(first_row)
    assert shown.texts_of("td", "th")[: 2 * width + 1] == [
        *explorer.maps[0].keys,
        "<s>",
        *first_row,
    ]


# The page it makes


def test_it_is_self_contained_and_the_same_each_time():
    html = AttentionExplorer("title", [random_maps()])._repr_html_()
    assert html == AttentionExplorer("title", [random_maps()])._repr_html_()
    # A name, not an address.
    assert re.findall(r"https?://[^\"' ]+", html) == ["http://www.w3.org/2000/svg"]
    attributes = [name for _, attrs in HtmlPage(html).tags for name in attrs]
    assert not {"src", "href", "id"} & set(attributes)  # ids would clash where it stands twice


def test_any_token_and_any_title_stay_text():
    nasty = ["</script><script>alert(1)</script>", "{{data}}", '"&\\', "<!--", "</td><b>"]
    maps = AttentionMaps("A & <i>B", random_maps().weights, nasty[:L], nasty, nasty[:L])
    html = AttentionExplorer("<b>title", [maps])._repr_html_()
    shown, plain = HtmlPage(html), page(AttentionExplorer("title", [random_maps()]))
    assert [tag for tag, _ in shown.tags] == [tag for tag, _ in plain.tags]
    (data,) = data_of(shown)["maps"]
    assert data["queries"] == data["predicts"] == nasty[:L] and data["keys"] == nasty
    assert '<p class="ax-title">&lt;b&gt;title</p>' in html


def test_zeros_are_decimals_too():
    """nbval compares decimals closely and words exactly: 0 against 0.001 would be two words."""
    maps = AttentionMaps("A", torch.tensor([[[[1.0, 0.0], [0.0004, 0.9996]]]]), "ab", "cd")
    html = AttentionExplorer("t", [maps])._repr_html_()
    assert '"weights": [[[[[1.000,0.000],[0.000,1.000]]]]]' in html


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kinds": ["encoder", "both"]}, "kinds must be some of encoder, decoder, cross, got"),
        ({"kinds": []}, "kinds must be some of"),
        ({"layer": 0}, "layer must be 1 to 2, got 0"),
        ({"head": 3}, "head must be 1 to 2, got 3"),
        ({"query": 99}, "query must be 1 to "),
        ({"source": "  "}, "source must have a word in it"),
    ],
)
def test_what_cannot_be_shown_is_refused(changes, message):
    texts = {"source": "tea", "target": "bad"}
    with pytest.raises(ConfigError, match=message):
        explore_attention(toy_model(), toy_tokenizer(), **(texts | changes))


def test_maps_that_do_not_fit_are_refused():
    weights = random_maps().weights
    line = "4 queries by 5 keys, got 3 query tokens and 5 key tokens"
    with pytest.raises(ConfigError, match=line):
        AttentionMaps("A", weights, "abc", "abcde")
    with pytest.raises(ConfigError, match="a predicted token for each of 4 queries, got 1"):
        AttentionMaps("A", weights, "abcd", "abcde", "a")
    with pytest.raises(ConfigError, match="no attention"):
        AttentionExplorer("title", [])
    with pytest.raises(ConfigError, match="same layers and heads"):
        AttentionExplorer("title", [random_maps(), random_maps(n=1)])


# In a browser

CHOSEN = """(() => {
  const root = document.querySelectorAll('.attention-explorer')[NUMBER];
  const list = root.querySelector('[role=listbox]');
  return {
    checked: [...root.querySelectorAll(':checked')].map(
      (input) => input.parentElement.textContent.trim()),
    query: [...list.children].findIndex(
      (option) => option.getAttribute('aria-selected') === 'true'),
    active: list.getAttribute('aria-activedescendant')
      === root.querySelector('[aria-selected=true]').id,
    weights: [...root.querySelectorAll('.ax-keys li')].map((item) => item.lastChild.textContent),
    says: root.querySelector('[role=status]').textContent,
    caption: root.querySelector('caption').textContent,
  };
})()"""
SHOWN = """['.ax-live', '.ax-table'].map((part) =>
  getComputedStyle(document.querySelector('.attention-explorer ' + part)).display !== 'none')"""
SECOND_ROW = (
    "[...document.querySelectorAll('tbody tr:nth-child(2) td')].map((cell) => cell.textContent)"
)
in_browser = IN_CHROMIUM[-1]  # not all of them are slow


def page_with(copies=1, length=L):
    """An explorer of `length` queries, and a page in which it stands `copies` times."""
    maps = random_maps(queries=length)
    predicts = [f"▁p{i}" for i in range(length)]
    cross = AttentionMaps("Cross", maps.weights, maps.queries, maps.keys, predicts)
    explorer = AttentionExplorer("A sentence", [random_maps("Self", S, S), cross], layer=2, head=3)
    return explorer, (
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>t</title>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'><body>"
        + "<p>and</p>".join([explorer._repr_html_()] * copies)
    )


@pytest.fixture
def load(tab, tmp_path):
    """A page with one explorer, or several; afterwards nothing may have complained."""
    complaints: list[str] = []

    def note(complaint):
        complaints.append(getattr(complaint, "text", str(complaint)))

    def load(**size):
        explorer, html = page_with(**size)
        path = tmp_path / "page.html"
        path.write_text(html, encoding="utf-8")
        open_page(tab, path.as_uri())
        return explorer

    for event in ("pageerror", "console"):
        tab.on(event, note)
    yield load
    tab.evaluate("1")
    for event in ("pageerror", "console"):
        tab.remove_listener(event, note)
    assert complaints == []


def press(tab, *keys):
    for key in keys:
        tab.keyboard.press(key)


def chosen(tab, number=0):
    return tab.evaluate(CHOSEN.replace("NUMBER", str(number)))


def row(explorer, kind, layer, head, query):
    return [f"{weight:.2f}" for weight in explorer.maps[kind].weights[layer, head, query].tolist()]


def nearly(one, two):
    return len(one) == len(two) and all(
        abs(float(a) - float(b)) < 0.011 for a, b in zip(one, two, strict=True)
    )


@pytest.mark.slow
@in_browser
def test_the_keyboard_reaches_and_changes_everything(tab, load):
    explorer = load()
    seen = chosen(tab)
    assert (seen["checked"], seen["query"], seen["active"]) == (["Self", "2", "Head 3"], 0, True)
    assert nearly(seen["weights"], row(explorer, 0, 1, 2, 0))
    press(tab, "Tab", "ArrowRight")  # the attention
    assert chosen(tab)["checked"] == ["Cross", "2", "Head 3"]
    press(tab, "Tab", "ArrowLeft")  # the layer
    assert chosen(tab)["checked"] == ["Cross", "1", "Head 3"]
    press(tab, "Tab", "ArrowLeft")  # the head
    assert chosen(tab)["checked"] == ["Cross", "1", "Head 2"]
    press(tab, "Tab", "ArrowDown", "ArrowDown")  # the query
    seen = chosen(tab)
    assert (seen["query"], seen["active"]) == (2, True)
    assert nearly(seen["weights"], row(explorer, 1, 0, 1, 2))
    press(tab, "ArrowRight", "End", "ArrowDown")  # another head, and the end is the end
    seen = chosen(tab)
    assert (seen["checked"], seen["query"]) == (["Cross", "1", "Head 3"], L - 1)
    assert nearly(seen["weights"], row(explorer, 1, 0, 2, L - 1))
    press(tab, "ArrowRight", "Home", "ArrowUp")
    assert (chosen(tab)["checked"][2], chosen(tab)["query"]) == ("Head 1", 0)
    press(tab, "Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Show this head as a table"


@pytest.mark.slow
@in_browser
def test_what_is_chosen_is_said_with_its_strongest_keys(tab, load):
    explorer = load()
    press(tab, "Tab", "ArrowRight", "Tab", "Tab", "Tab", "ArrowDown")
    weights = explorer.maps[1].weights[1, 2, 1]
    strongest = ", ".join(
        f"k{j} {weights[j]:.2f}" for j in weights.argsort(descending=True)[:3].tolist()
    )
    says = re.match(r"(.*): (.*)\.$", chosen(tab)["says"])
    assert says[1] == "Cross, layer 2, head 3. Query: q1, to predict p1. Strongest keys"
    assert re.sub(r" [\d.]+", "", says[2]) == re.sub(r" [\d.]+", "", strongest)
    assert nearly(re.findall(r"\d\.\d+", says[2]), re.findall(r"\d\.\d+", strongest))
    live = "document.querySelector('[role=status]').getAttribute('aria-live')"
    assert tab.evaluate(live) == "polite"
    assert chosen(tab)["caption"].startswith("Cross, layer 2, head 3:")


@in_browser
def test_controls_and_tokens_have_names_and_the_focus_is_seen(tab, load):
    load()
    press(tab, "Tab", "Tab", "Tab", "Tab")
    nodes = tab.context.new_cdp_session(tab).send("Accessibility.getFullAXTree")["nodes"]
    names: dict[str, list[str]] = {}
    for node in nodes:
        if not node["ignored"]:
            name = node.get("name", {}).get("value", "")
            names.setdefault(node["role"]["value"], []).append(name)
    assert names["option"] == [f"q{i}, {i + 1} of {S}" for i in range(S)]
    assert names["radio"] == ["Self", "Cross", "1", "2", "Head 1", "Head 2", "Head 3"]
    assert names["listbox"][0].startswith("Queries of Self, layer 2, head 3.")
    assert [name for role in ("group", "button", "list") for name in names[role] if not name] == []
    assert tab.evaluate("document.activeElement.getAttribute('role')") == "listbox"
    assert tab.evaluate("getComputedStyle(document.activeElement).outlineWidth") == "3px"


@in_browser
def test_pointing_shows_and_clicking_chooses(tab, load):
    explorer = load()
    third = tab.get_by_role("option").nth(2)
    third.hover()
    assert chosen(tab)["query"] == 2
    assert nearly(chosen(tab)["weights"], row(explorer, 0, 1, 2, 2))
    tab.mouse.move(1, 1)
    assert chosen(tab)["query"] == 0
    third.click()
    tab.mouse.move(1, 1)
    assert chosen(tab)["query"] == 2


@in_browser
def test_two_on_a_page_leave_each_other_alone(tab, load):
    load(copies=2)
    before = chosen(tab, 1)
    press(tab, "Tab", "ArrowRight", "Tab", "ArrowLeft", "Tab", "ArrowLeft", "Tab", "ArrowDown")
    assert chosen(tab, 0) != before
    assert chosen(tab, 1) == before
    ids = tab.evaluate("[...document.querySelectorAll('[id]')].map((element) => element.id)")
    assert len(ids) == len(set(ids)) == 2 * L + S - L


@in_browser
def test_on_paper_it_is_a_table(tab, load):
    explorer = load()
    assert tab.evaluate(SHOWN) == [True, False]
    press(tab, "Tab", "ArrowRight")
    tab.emulate_media(media="print")
    try:
        assert tab.evaluate(SHOWN) == [False, True]
        # It is the row of the head that was chosen.
        assert nearly(tab.evaluate(SECOND_ROW), row(explorer, 1, 1, 2, 1))
    finally:
        tab.emulate_media(media="null")


@in_browser
def test_without_a_script_it_is_a_table(tab):
    explorer, html = page_with()
    with tab.context.browser.new_context(java_script_enabled=False) as context:
        plain = context.new_page()
        plain.set_content(html)
        assert plain.evaluate(SHOWN) == [False, True]
        assert nearly(plain.evaluate(SECOND_ROW), row(explorer, 0, 1, 2, 1))


@in_browser
def test_who_wants_no_motion_gets_none(tab, load):
    load()
    fade = "getComputedStyle(document.querySelector('.ax-keys li')).transitionDuration"
    try:
        for preference, duration in (("no-preference", "0.15s"), ("reduce", "0s")):
            tab.emulate_media(reduced_motion=preference)
            assert tab.evaluate(fade) == duration
    finally:
        tab.emulate_media(reduced_motion="null")
