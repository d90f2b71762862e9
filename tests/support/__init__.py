"""What tests share: programs run in kept processes, inputs, and servers that fail on purpose."""
