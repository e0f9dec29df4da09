"""The other methods of the paper's tables, implemented from their published equations."""
