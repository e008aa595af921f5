"""New small models: from verdicts, or by cloning rows."""
