"""The environment of verifiers has no torch, so the program that needs it is not searched for examples."""

collect_ignore = ["chat_server.py"]
