"""Text to batches (section 5.1): corpora, the tokenizer, and batches of similar length."""
