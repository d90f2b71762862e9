"""Jobs besides masked language modelling, for the loop to train."""
