"""The exported page in Chromium when something fails, takes long or is not allowed."""

import re

from playwright.sync_api import expect

from exported_page import IN_CHROMIUM, open_page

pytestmark = IN_CHROMIUM


def replace_in(page, path, old, new):
    """Let the page have another text of one of its files."""
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    page.route(f"**/{path.name}", lambda route: route.fulfill(body=text.replace(old, new)))


def test_after_an_error_what_was_typed_meanwhile_is_translated(page, folder, address):
    begin = "translate: async (request) => {"
    fail = "await new Promise((_, no) => setTimeout(no, 2000, 'no memory'));"
    failing = f"{begin} if (request.text === 'fail') {fail}"
    replace_in(page, folder / "engine.js", begin, failing)
    open_page(page, address)
    page.fill("#text", "fail")
    expect(page.locator("#said")).to_have_text("This did not work: no memory")
    expect(page.locator("#spoken")).to_have_text("This did not work: no memory")
    expect(page.locator("#translation")).to_be_empty()
    expect(page.locator("#hypotheses")).to_be_hidden()
    page.fill("#text", "Yes.")
    expect(page.locator("#translation")).to_have_text("Ja.")
    page.fill("#text", "fail")
    page.fill("#text", "No.")
    expect(page.locator("#translation")).to_have_text("Nein.")
    expect(page.locator("#hypotheses")).to_be_visible()


def test_that_the_model_did_not_load_is_said_aloud(page, folder, address):
    fail = 'load: async () => { throw "no memory"; }, unused: async ({'
    replace_in(page, folder / "engine.js", "load: async ({", fail)
    page.goto(address)
    for place in ("#said", "#spoken"):
        expect(page.locator(place)).to_have_text("The model did not load: no memory")


def test_where_only_scripts_of_its_own_address_are_allowed_it_computes_in_javascript(
    page, folder, address
):
    """Then worker, WebAssembly and scripts in HTML are refused."""
    policy = "<meta http-equiv=Content-Security-Policy content=\"script-src 'self'\">"
    text = folder.joinpath("index.html").read_text(encoding="utf-8")
    strict = text.replace("<title>", f"{policy}<title>")
    page.route("**/index.html", lambda route: route.fulfill(body=strict, content_type="text/html"))
    open_page(page, address)
    assert page.evaluate("document.documentElement.dataset.engine") == "JavaScript"
    page.fill("#text", "Yes.")
    expect(page.locator("#translation")).to_have_text("Ja.")
    expect(page.locator(".ax-queries li")).not_to_have_count(0)


def test_explorers_of_earlier_sentences_are_given_up(page, address):
    """New colours are drawn by the one that stands in the page."""
    page.add_init_script(
        "window.nObservers = 0; const observe = MutationObserver.prototype.observe;"
        "MutationObserver.prototype.observe = function (...asked) {"
        "  window.nObservers += 'attributeFilter' in asked[1];"
        "  return observe.apply(this, asked); };"
    )
    open_page(page, address)
    for n, text in enumerate(("Yes.", "I like tea.", "No."), 2):
        page.fill("#text", text)
        page.wait_for_function(f"window.attentionExplorers === {n}")
    assert page.evaluate("window.nObservers") == 1
    drawn = "document.querySelector('.ax-heads canvas').toDataURL()"
    light = page.evaluate(drawn)
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.wait_for_function(f"{drawn} !== {light!r}")


def test_a_long_search_is_announced_cut_and_given_up_for_a_newer_text(page, address):
    open_page(page, address)
    page.evaluate(
        "window.heard = []; new MutationObserver(() => heard.push(document.querySelector('#said')"
        ".textContent)).observe(document.querySelector('#said'), { childList: true })"
    )
    page.fill("#text", "tea " * 2000)
    expect(page.locator("#said")).to_have_text("Translating…")
    expect(page.locator("#translation")).to_have_attribute("aria-busy", "true")
    page.fill("#text", "Yes.")
    expect(page.locator("#translation")).to_have_text("Ja.")
    expect(page.locator("#translation")).to_have_attribute("aria-busy", "false")
    assert not [said for said in page.evaluate("window.heard") if "is cut" in said]
    for name, value in (("beam", "1"), ("text", "tea " * 600)):
        page.fill(f"#{name}", value)
    cut = re.compile("The text is cut: 511 of its 6.. tokens are translated.")
    expect(page.locator("#said")).to_have_text(cut)
    expect(page.locator("#spoken")).to_have_text(cut)


def test_what_is_knocked_out_leaves_the_other_views_as_they_are(page, address):
    open_page(page, address)
    page.wait_for_function("document.querySelector('#left').textContent")
    page.fill("#step", "2")
    page.select_option("#without-kind", "encoder")
    spoken, said = (
        f"document.querySelector('{at}').textContent" for at in ("#spoken", "#without-said")
    )
    page.wait_for_function(f"{spoken}.startsWith({said})")
    expect(page.locator("#step")).to_have_value("2")
    assert page.evaluate("window.attentionExplorers") == 1
