"""Reports on runs: the HTML page, the summary in sentences, transcripts in a terminal, and the model card."""
