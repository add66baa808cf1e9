"""Results that others published, in the form of our indices; what must be known of each publisher to simulate them."""
