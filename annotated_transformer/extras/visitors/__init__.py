"""For people who type into a translator: what they mean, and what the model may have lost of it.

`for_visitors(translator)` wraps a translator; `augmentation` makes the training text to go with it.
"""

from annotated_transformer.extras.visitors.typed_lines import for_visitors as for_visitors
