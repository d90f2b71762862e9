"""Pages of the documentation: what they show, and a copy of the checkout in which it is typed."""
