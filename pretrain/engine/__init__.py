"""How a run is spread: building the Accelerator, and the state of every engine by name."""
