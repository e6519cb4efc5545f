"""Labels other than one class per text: several classes, ordered ones, and numbers."""
