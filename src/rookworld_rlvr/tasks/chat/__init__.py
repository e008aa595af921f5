"""The chat task: one position, one move, for any instruct model. Prompts, their reader, answers' reader, reward."""
