"""Output for people: `progress` lines, numbers as text (`format`), and text without secrets (`safe_text`)."""
