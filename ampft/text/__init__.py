"""Text for people and for files: terminal, numbers in words, escaping, Markdown, JSON."""
