"""What tests/bench/peers measures, and how it shows the results."""
