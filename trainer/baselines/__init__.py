"""The other methods of the paper's tables, one file each, implemented from their published equations."""
