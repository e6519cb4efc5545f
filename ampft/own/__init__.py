"""Loops of users: exact steps, resume and a run record for any model and loss."""
