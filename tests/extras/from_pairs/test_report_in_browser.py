"""The report in Chromium, light and dark, on a screen as wide as a phone's."""

from annotated_transformer.extras.from_pairs.report import report_page
from exported_page import IN_CHROMIUM, require_accessible
from tools.browser import chromium_page
from toys import report_scores

pytestmark = IN_CHROMIUM
SCORE = {"score": 12.3, "signature": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"}
SCORES = report_scores("Guten Tag. " + "w" * 90) | {"scores": {"BLEU": SCORE, "chrF2": SCORE}}


def test_axe_finds_nothing_and_a_phone_is_wide_enough(tmp_path):
    log = [{"step": step, "nll": 5 - step / 100, "valid_nll": 3.0} for step in (50, 100, 150)]
    counts = {"train": 700, "valid": 20, "test": 20}
    text = report_page("a-long-name-of-a-file.tsv", counts, {"N": 3}, log, SCORES, 4.4)
    (tmp_path / "report.html").write_text(text, encoding="utf-8")
    with chromium_page() as page:
        page.set_viewport_size({"width": 360, "height": 800})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            page.goto(tmp_path.joinpath("report.html").as_uri())
            require_accessible(page)
