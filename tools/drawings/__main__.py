"""Write book/figures/*.svg and static/card.png."""

from PIL import Image

from tools.drawings import files
from tools.figures import CARD_SIGN, FIGURES, card_pixels

for name, text in files().items():
    (FIGURES / name).write_text(text, encoding="utf-8")
Image.frombytes("RGB", (240, 240), b"".join(card_pixels())).save(CARD_SIGN)
