"""Forms of an answer: how each is learnt, decoded, kept and shown, for any kind of input."""
