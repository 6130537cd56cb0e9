"""What happens when a whole worker dies: ``monitor`` notices, ``recovery`` flags and puts back."""
