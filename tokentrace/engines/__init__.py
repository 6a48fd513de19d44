"""What differs between engines."""
