"""The commands of the core: their flags, and what each does with them."""
