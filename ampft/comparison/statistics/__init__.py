"""How sure a difference between two modes is: seeds as readers, examples as cases."""
