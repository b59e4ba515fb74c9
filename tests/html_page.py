"""HTML as a browser would read it, for the tests of what the package and the lab write."""

from html.parser import HTMLParser

WITHOUT_END = {"meta", "link", "input", "path"}


class HtmlPage(HTMLParser):
    """The tags of a page in order, each with its attributes, and each text with its element."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.texts, self.open = [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in WITHOUT_END:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in WITHOUT_END:
            assert self.open.pop() == tag  # all that is opened is closed, in order

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def texts_of(self, *tags):
        return [text for tag, text in self.texts if tag in tags]
