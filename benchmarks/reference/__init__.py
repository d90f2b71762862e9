"""Seven short runs whose every bit is written down, to show that a change of the code changed none."""
