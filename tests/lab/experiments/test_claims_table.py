"""The table of claims is whole without its script, and its menus offer what its rows have."""

from collections import Counter

from html_page import HtmlPage
from lab.experiments.claims import CLAIM_KINDS, Claim, judge_claims, load_results
from lab.experiments.claims_table import CLASSES, ClaimsTable, in_words, tallies
from lab.experiments.result_file import RESULTS


def rows_of(page):
    return [attributes for _, attributes in page.tags if "data-verdict" in attributes]


def text_of(page):
    return "".join(text for tag, text in page.texts if tag not in ("script", "style", "option"))


def test_every_claim_can_be_read_without_a_script():
    claims = judge_claims({})
    page = HtmlPage(ClaimsTable(claims)._repr_html_())
    assert len(rows_of(page)) == len(claims)
    hidden = [tag for tag, attributes in page.tags if "hidden" in attributes]
    assert hidden == ["form"]  # the menus, which do nothing without the script
    for claim in claims:
        for said in (claim.statement, claim.rule, claim.evidence):
            words = HtmlPage(in_words(said)).texts
            assert "".join(text for _, text in words) in text_of(page)
        assert f"{claim.verdict.replace(' at this length', '')} here" in text_of(page)


def test_each_choice_leaves_rows_and_each_row_can_be_chosen():
    page = HtmlPage(ClaimsTable(judge_claims({}))._repr_html_())
    verdicts = {row["data-verdict"] for row in rows_of(page)}
    buttons = [attributes["value"] for tag, attributes in page.tags if tag == "button"]
    assert sorted(buttons) == sorted({"", *verdicts})
    sections = {part for row in rows_of(page) for part in row["data-section"].split(", ")}
    assert sorted(page.texts_of("option")) == sorted({"every section", *sections})


def test_the_tally_and_what_is_quoted_are_counted_from_the_claims():
    claims = judge_claims(load_results(RESULTS))
    page = HtmlPage(ClaimsTable(claims)._repr_html_())
    texts = page.texts_of("b")
    counted = Counter(claim.verdict for claim in claims)
    assert texts[: len(counted)] == [
        str(counted[verdict]) for verdict in CLASSES if counted[verdict]
    ]
    assert len(texts) == len(counted) + 6
    warm_up = next(claim.compared for claim in claims if "warm-up of the rate" in claim.statement)
    assert f"{warm_up.scaled(warm_up.found.mean):.0f}% more" in texts
    pictures = [attributes["aria-label"] for tag, attributes in page.tags if tag == "svg"]
    assert pictures == [str(claim.compared) for claim in claims_in_order(claims) if claim.compared]


def claims_in_order(claims):
    """As the table has them: trained models first."""
    return sorted(claims, key=lambda claim: claim.kind != "trained models")


def test_formulas_are_typeset():
    assert in_words("costs O(n^2 d) < 1/sqrt(d_k)").count('class="math') == 2
    assert r"\sqrt{d_k}" in in_words("1/sqrt(d_k)") and "&lt;" in in_words("a < b")


def test_what_a_claim_says_cannot_end_the_table():
    claim = Claim("claim", "theorem", "4", "a < b & <b>", "</table>", "holds", '"x" < y')
    text = text_of(HtmlPage(ClaimsTable([claim])._repr_html_()))
    assert "a < b & <b>" in text
    assert "</table>" in text


def test_each_kind_has_its_tally():
    claims = judge_claims({})
    counted = tallies(claims)
    assert tuple(counted) == CLAIM_KINDS
    assert sum(sum(of_kind.values()) for of_kind in counted.values()) == len(claims)
