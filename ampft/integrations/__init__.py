"""Doors: what lets other programs, their flags, their models and their predictions in and out."""
