"""Load: workers that each use the broker in one way and write down what they asked and what was answered."""
