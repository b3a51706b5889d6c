"""Files to batches: text, pairs, tokenisers, the cache; and the built-in corpus."""
