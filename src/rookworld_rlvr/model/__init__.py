"""Language models: loading, log-probs of a batch, packing without padding, sharding, and exchange between ranks."""
