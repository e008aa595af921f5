"""A language model on a batch: loading, log-probs, and rows side by side without padding."""
