"""The table of claims is whole without its script, and its menus offer what its rows have."""

from html_page import HtmlPage
from lab.experiments.claims import CLAIM_KINDS, Claim, judge_claims
from lab.experiments.claims_table import ClaimsTable, tallies


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
        for said in (claim.statement, claim.rule, claim.verdict, claim.evidence):
            assert said in text_of(page)


def test_each_choice_of_a_menu_leaves_rows_and_each_row_can_be_chosen():
    page = HtmlPage(ClaimsTable(judge_claims({}))._repr_html_())
    expected = []
    menus = ["section", "kind", "verdict"]
    for name in menus:
        parts = {part for row in rows_of(page) for part in row[f"data-{name}"].split(", ")}
        expected += [f"every {name}", *parts]
    assert [attributes["name"] for tag, attributes in page.tags if tag == "select"] == menus
    assert sorted(page.texts_of("option")) == sorted(expected)


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
