"""What keeps an HTML page from standing alone, from a phone or a dark screen."""

import re
from html.parser import HTMLParser

LOADING = "script", "img", "iframe", "source", "video", "audio", "embed", "link"


class Document(HTMLParser):
    """The tags, ids, outer references and text of a page; loaded: what a browser loads with it."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.references, self.tags, self.text, self.loaded = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href", "action", "data", "srcset"):
                self.references.append(value)
                self.loaded += [value] if tag in LOADING else []

    def handle_data(self, data):
        self.text.append(data)


class Nesting(HTMLParser):
    """Faults of a page: end tags that close another element, tables that cannot scroll."""

    def __init__(self, text):
        super().__init__()
        self.open, self.faults, self.text = [], [], text
        self.feed(text)
        self.close()
        self.faults += [f"{tag} is never closed" for tag, _ in self.open]

    def handle_starttag(self, tag, attributes):
        if tag == "table" and ("class", "scroll") not in self.open[-1][1]:
            self.faults.append("a table outside a box that scrolls")
        if tag not in ("meta", "link", "br", "hr", "img", "input"):
            self.open.append((tag, attributes))

    def handle_startendtag(self, tag, attributes):
        """An element of a drawing."""

    def handle_endtag(self, tag):
        if not self.open or self.open.pop()[0] != tag:
            self.faults.append(f"</{tag}> in {self.getpos()} closes another element")


def contrast(first, second):
    """Contrast ratio of two colors #rrggbb (WCAG 2.2)."""

    def light(color):
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, bright = sorted((light(first), light(second)))
    return (bright + 0.05) / (dark + 0.05)


def faults_of(text):
    """What keeps a page from a phone, a dark screen, or a reader without a network."""
    style = re.search(r"<style>(.*?)</style>", text, re.S)[1]
    faults = Nesting(text).faults
    for needed in ('content="width=device-width, initial-scale=1"', 'name="color-scheme"'):
        faults += [] if needed in text else [f"{needed} is missing"]
    light, dark = (
        dict(re.findall(r"--(\w+): (#\w{6})", part))
        for part in re.fullmatch(
            r"(.*?)@media \(prefers-color-scheme: dark\)(.*)", style, re.S
        ).groups()
    )
    for scheme in (light, dark):
        pairs = [
            (name, "paper") for name in scheme if name not in ("paper", "band", "rule", "code")
        ]
        for name, ground in [*pairs, ("ink", "code")]:
            if contrast(scheme[name], scheme[ground]) < 4.5:
                faults.append(f"{name} on {ground}: {contrast(scheme[name], scheme[ground]):.2f}")
    for found in re.finditer(r"(?<!max-)(?:width|flex-basis)\s*[:=]\s*[\"']?(\d+)px", text):
        faults += [f"{found[0]} is fixed"] if int(found[1]) > 360 else []
    for found in re.finditer(r"minmax\((?!min\([^)]*100%\))[^)]*", style):
        faults.append(f"{found[0]} is wider than a phone")
    if not re.search(r"body \{[^}]*overflow-wrap: break-word", style):
        faults.append("a long name makes the page wider than the screen")
    outside = text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    faults += re.findall(r"https?://|//\w+\.\w+/|@import|url\((?!#)|<script|<iframe|<base", outside)
    return faults
