"""Translation (section 6.1): beam search, text in and text out, and scores."""
