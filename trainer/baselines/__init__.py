"""The other methods of the paper's tables, each in a file of its own, implemented from their published equations."""
