"""What a real engine left: recorded runs, requests and steps, and served results that others published."""
