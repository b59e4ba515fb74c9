"""The translator in the chapters: its directive, what is shown without JavaScript, its links."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from annotated_transformer.decoding.translator import Translator

ROOT = Path(__file__).parents[1]
PLACES = {
    "intro": "translate training",
    "0_one_hour": "tokens",
    "3_2_attention": "attention",
    "5_2_training": "training",
    "6_1_translation": "beam",
    "7_attention_visualizations": "knock-out",
}
TEXT = "The woman who lives next door has a small dog."


@pytest.fixture
def views(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "sphinx"))
    return import_module("translator_views")


@pytest.mark.parametrize(("chapter", "views_there"), PLACES.items())
def test_a_chapter_shows_the_view_that_it_talks_about(chapter, views_there):
    text = (ROOT / "book" / f"{chapter}.py").read_text(encoding="utf-8")
    assert re.findall(r"^# ```\{translator\} (\S+)$", text, flags=re.M) == views_there.split()


def test_without_javascript_each_view_has_an_example_by_the_same_model(views):
    model = ROOT / "book" / "model"
    [best] = Translator.from_checkpoint(model).translate([TEXT])
    shown = {view: views.stored_example(model, view, TEXT) for view in views.TITLES}
    assert len(set(shown.values())) == len(views.TITLES) == 5
    assert all(best in shown[view] for view in ("translate", "beam", "knock-out"))
    assert shown["beam"].count("<li>") == 4
    [left] = re.findall(r"<dd>([^<]*)</dd></dl>", shown["knock-out"])
    assert left != best
    assert shown["tokens"].count("<tr>") == shown["attention"].count("<tr>") > 4


def test_the_directive_leads_to_the_page_from_where_it_stands(views):
    directive = SimpleNamespace(
        arguments=["beam"],
        options={"text": "I like tea & you."},
        env=SimpleNamespace(docname="book/6_1_translation", srcdir=ROOT),
    )
    [node] = views.TranslatorView.run(directive)
    address = "../translator/index.html#view=beam&amp;text=I%20like%20tea%20%26%20you."
    assert f'data-src="{address}"' in node.astext()
    directive.arguments = ["training"]
    [link] = views.TranslatorView.run(directive)
    assert 'href="../training/index.html"' in link.astext()
    with pytest.raises(ValueError, match="beams"):
        views.TranslatorView.run(SimpleNamespace(**{**vars(directive), "arguments": ["beams"]}))


def test_the_site_has_the_page_with_links_to_chapters_that_are_there(views, tmp_path):
    app = SimpleNamespace(builder=SimpleNamespace(format="html"), srcdir=ROOT, outdir=tmp_path)
    views.write_translator(app, RuntimeError("the build failed"))
    assert not list(tmp_path.iterdir())
    views.write_translator(app, None)
    assert '"book": "../book/"' in (tmp_path / "training" / "reference.js").read_text()
    page = tmp_path / "translator"
    assert '"book":"../book/"' in (page / "model.js").read_text(encoding="utf-8")[:3000]
    links = re.findall(
        r'class="chapter" hidden><a href="([^"#]+)',
        (page / "index.html").read_text() + (tmp_path / "training" / "index.html").read_text(),
    )
    assert len(links) == 7
    assert all((ROOT / "book" / link).with_suffix(".py").exists() for link in links)
