"""The table of claims is whole without its script, and its menus offer what its rows have."""

from html.parser import HTMLParser

from lab.experiments.claims import CLAIM_KINDS, Claim, judge_claims
from lab.experiments.claims_table import ClaimsTable, tallies


class Page(HTMLParser):
    """Rows with their data, the options of each menu, and what is hidden."""

    def __init__(self, html):
        super().__init__()
        self.rows, self.menus, self.hidden, self.open, self.text = [], {}, [], [], ""
        self.menu = None
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.open.append(tag)
        if "data-verdict" in attrs:
            self.rows.append(attrs)
        if "hidden" in attrs:
            self.hidden.append(tag)
        if tag == "select":
            self.menu = self.menus.setdefault(attrs["name"], [])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag  # all that is opened is closed, in order

    def handle_data(self, data):
        if self.open[-1] == "option":
            self.menu.append(data)
        elif self.open[-1] not in ("script", "style"):
            self.text += data


def test_every_claim_can_be_read_without_a_script():
    claims = judge_claims({})
    page = Page(ClaimsTable(claims)._repr_html_())
    assert len(page.rows) == len(claims)
    assert page.hidden == ["form"]  # the menus, which do nothing without the script
    for claim in claims:
        for said in (claim.statement, claim.rule, claim.verdict, claim.evidence):
            assert said in page.text


def test_each_choice_of_a_menu_leaves_rows_and_each_row_can_be_chosen():
    page = Page(ClaimsTable(judge_claims({}))._repr_html_())
    assert list(page.menus) == ["section", "kind", "verdict"]
    for name, options in page.menus.items():
        offered = set(options[1:])
        assert options[0] == f"every {name}"
        assert offered == {part for row in page.rows for part in row[f"data-{name}"].split(", ")}


def test_what_a_claim_says_cannot_end_the_table():
    claim = Claim("claim", "theorem", "4", "a < b & <b>", "</table>", "holds", '"x" < y')
    page = Page(ClaimsTable([claim])._repr_html_())
    assert "a < b & <b>" in page.text
    assert "</table>" in page.text


def test_each_kind_has_its_tally():
    claims = judge_claims({})
    counted = tallies(claims)
    assert tuple(counted) == CLAIM_KINDS
    assert sum(sum(of_kind.values()) for of_kind in counted.values()) == len(claims)
