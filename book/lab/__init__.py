"""The book's lab: experiments, exercises, a page in which a model learns, what chapters show."""
