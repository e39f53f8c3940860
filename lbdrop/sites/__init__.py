"""Sites, the places where a model draws a mask: find them, give each a learned rate, and take it out again."""
