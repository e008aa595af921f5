"""The tasks and rewards behind other libraries' interfaces. No torch; each library is imported where it is chosen."""
