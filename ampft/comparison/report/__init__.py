"""Reports of a comparison for the terminal, in Markdown and in HTML."""
