"""Several runs that differ in precision alone, and what follows from them."""
