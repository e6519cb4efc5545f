"""How certain a difference between two modes is: seeds are readers, and examples are cases."""
