"""Templates of the cards this package writes; `examples/` holds their golden renders."""
