"""What a run says about itself: metrics, errors, one line on the console."""
