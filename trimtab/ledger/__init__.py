"""What happened, and what did it cost?"""
