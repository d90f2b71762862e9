"""What looks at pages as a reader does."""
