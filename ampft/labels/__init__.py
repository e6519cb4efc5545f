"""Labels beside one class per text: several classes, and numbers."""
