"""What a fitted recommender answers: scores, best items, explanations, files of scores."""
